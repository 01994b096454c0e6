"""The text of `mirror.promoted`: when a replica was promoted, and where its copies end."""

import pytest

from pipeline.errors import ConfigurationError
from pipeline.promotion import Promotion

BEGUN = Promotion(at_ms=1_700_000_000_000)
DONE = Promotion(at_ms=1_700_000_000_000, ends=(12, 0))


@pytest.mark.parametrize("promotion", [BEGUN, DONE, Promotion(at_ms=0, ends=())])
def test_a_text_gives_the_promotion_back(promotion: Promotion) -> None:
    assert Promotion.parse(promotion.encode()) == promotion


def test_the_text_is_short_and_the_time_is_readable() -> None:
    assert DONE.encode() == '{"at":1700000000000,"ends":[12,0]}'
    assert DONE.refusal_of("clicks") == "clicks was promoted at 2023-11-14T22:13:20Z: it is no longer a replica"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not an object with a time"),
        ("{}", "is not an object with a time"),
        ('{"at":true}', "is not an object with a time"),
        ('{"at":-1}', "is not an object with a time"),
        ('{"at":1,"ends":[-1]}', "not a list of offsets"),
        ('{"at":1,"ends":7}', "not a list of offsets"),
        (f'{{"at":1,"ends":[{2**63}]}}', "not a list of offsets"),
        (" " * 32_768, "is longer than 32767 bytes"),
    ],
)
def test_another_text_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"mirror.promoted.*{reason}"):
        Promotion.parse(text)


def test_a_text_that_no_client_could_read_is_not_written() -> None:
    with pytest.raises(ConfigurationError, match="too many partitions"):
        Promotion(at_ms=0, ends=(10**9,) * 5000).encode()


def test_only_ends_are_added_to_a_promotion() -> None:
    assert BEGUN.may_become(DONE)
    assert DONE.may_become(DONE)
    assert not DONE.may_become(BEGUN)
    assert not DONE.may_become(Promotion(at_ms=DONE.at_ms, ends=(13, 0)))
    assert not BEGUN.may_become(Promotion(at_ms=BEGUN.at_ms + 1))
