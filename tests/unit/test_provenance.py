"""The text of `mirror.partitions`: which source partition each replica partition is a copy of."""

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.provenance import MAX_TEXT_BYTES, Origin, Provenance

ID = UUID(int=7)
NO_ID = UUID(int=0)
TOPICS = [
    ("east", ("E",), "clicks", ID),
    ("west", ("W",), "clicks", ID),
    ("west", ("W",), "clicks", NO_ID),
    ("far", ("E", "F"), "späte klicks", UUID(int=9)),
]
ENTRY: dict[str, Any] = {
    "source": "east", "topic": "clicks", "topic_id": str(ID), "path": ["E"], "first": 0, "count": 64, "at": 0,
}  # fmt: skip


def origin(number: int, partition: int) -> Origin:
    source, path, topic, topic_id = TOPICS[number]
    return Origin(source=source, path=path, topic=topic, topic_id=topic_id, partition=partition)


def text(*changes: dict[str, Any]) -> str:
    return json.dumps([ENTRY | change for change in changes])


def made_of(chosen: list[tuple[int, int, int]]) -> Provenance:
    provenance = Provenance()
    for at, number, partition in chosen:
        provenance = provenance.with_partition(at, origin(number, partition))
    return provenance


entries = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, len(TOPICS) - 1), st.integers(0, 60)),
    unique_by=(lambda entry: entry[0], lambda entry: entry[1:]),
    max_size=60,
)


@given(entries)
def test_origins_survive_encoding_in_any_order_of_entries(chosen: list[tuple[int, int, int]]) -> None:
    expected = {at: origin(number, partition) for at, number, partition in chosen}
    provenance = Provenance()
    for at, found in expected.items():
        provenance = provenance.with_partition(at, found)
    for read in (provenance, Provenance.parse(provenance.encode())):
        assert {at: read.origin_of(at) for at in range(-1, 62) if read.origin_of(at)} == expected
        assert read == provenance
    again = Provenance()
    for at, found in sorted(expected.items(), reverse=True):
        again = again.with_partition(at, found)
    assert again.encode() == provenance.encode()


@given(entries)
def test_neighbours_of_one_source_are_one_range(chosen: list[tuple[int, int, int]]) -> None:
    provenance = Provenance()
    for at, number, partition in chosen:
        provenance = provenance.with_partition(at, origin(number, partition))
    assert sum(copied.count for copied in provenance.ranges) == len(chosen)
    for before, after in zip(provenance.ranges, provenance.ranges[1:], strict=False):
        assert not after.continues(before)


@given(entries, entries)
def test_entries_that_change_or_vanish_are_found(before: list[tuple[int, int, int]], after: Any) -> None:
    changed = made_of(after).changed_since(made_of(before))
    kept = {at: place for at, *place in after}
    lost = [at for at, *place in before if kept.get(at) != place]
    assert changed == min(lost, default=None)


@given(entries, st.integers(0, 60))
def test_entries_that_are_added_change_none(chosen: list[tuple[int, int, int]], count: int) -> None:
    assert made_of(chosen).changed_since(made_of(chosen[:count])) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(ENTRY)), inner, max_size=7),
    max_leaves=20,
)


@given(
    json_values | st.tuples(st.sampled_from(sorted(ENTRY)), json_values).map(lambda pair: [ENTRY | {pair[0]: pair[1]}])
)
def test_hostile_json_is_read_or_refused(document: Any) -> None:
    _read_or_refuse(json.dumps(document))


@given(st.text())
def test_hostile_text_is_read_or_refused(hostile: str) -> None:
    _read_or_refuse(hostile)


def _read_or_refuse(hostile: str) -> None:
    try:
        provenance = Provenance.parse(hostile)
    except ConfigurationError as error:
        assert error.key == "mirror.partitions"
    else:
        assert Provenance.parse(provenance.encode()) == provenance


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("[" * 100_000, "longer than 32767 bytes"),
        ("[" * 30_000, "is not JSON"),
        ("", "is not JSON"),
        ("{}", "is not a list"),
        ("[1]", "entry 0 is not an object"),
        ('[{"at":0,"first":0,"count":1}]', "`path` of entry 0 is not a list"),
        (text({"path": "E"}), "`path` of entry 0"),
        (text({"path": []}), "1 to 16 clusters"),
        (text({"path": [str(number) for number in range(17)]}), "1 to 16 clusters"),
        (text({"path": ["E", "H", "E"]}), "a loop of mirrors"),
        (text({"path": ["\ud800"]}), "unprintable"),
        (text({"topic_id": "7"}), "`topic_id` of entry 0 is not a UUID"),
        (text({"topic": 7}), "`topic` of entry 0 is not text"),
        (text({"topic": "a/b"}), "is no name of a topic"),
        (text({"source": "x" * 250}), "overlong"),
        (text({"first": -1}), "source partitions outside"),
        (text({"first": 2**31 - 1, "count": 2}), "source partitions outside"),
        (text({"at": True}), "`at` of entry 0 is not a whole number"),
        (text({"at": 1.5}), "`at` of entry 0 is not a whole number"),
        (text({"at": -1}), "outside of 100000"),
        (text({"count": 0}), "outside of 100000"),
        (text({"at": 99_999, "count": 2}), "outside of 100000"),
        (text({}, {"source": "west", "path": ["W"], "at": 63}), "replica partition 63 has two entries"),
        (text({}, {"first": 63, "at": 64}), "east/clicks-63 has two replica partitions"),
    ],
)
def test_a_wrong_text_is_refused_in_words(wrong: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Provenance.parse(wrong)


def test_fields_of_the_range_before_hold_on_and_unknown_ones_are_ignored() -> None:
    short = json.dumps([ENTRY | {"later": 1}, {"first": 64, "count": 8, "at": 70}])
    provenance = Provenance.parse(short)
    assert provenance.origin_of(71) == origin(0, 65)
    assert [provenance.origin_of(partition) for partition in (-1, 64, 69, 78)] == [None] * 4
    assert len(provenance.encode()) < len(text({}, {})) - 50


def test_an_entry_does_not_change() -> None:
    provenance = Provenance().with_partition(3, origin(0, 3))
    assert provenance.with_partition(3, origin(0, 3)) is provenance
    with pytest.raises(ConfigurationError, match="replica partition 3 is a copy of east/clicks-3"):
        provenance.with_partition(3, origin(1, 0))
    with pytest.raises(ConfigurationError, match="east/clicks-3 has two replica partitions"):
        provenance.with_partition(4, origin(0, 3))


def test_a_token_names_cluster_topic_id_and_partition() -> None:
    assert origin(3, 5).token() == f"F/späte klicks/{UUID(int=9)}/5"
    assert Provenance().with_partition(0, origin(3, 5)).source_of("F") == "far"
    assert Provenance().source_of("F") is None


def test_a_provenance_too_large_for_the_protocol_is_not_encoded() -> None:
    provenance = Provenance()
    for number in range(300):
        name = f"source-{number:0240}"
        found = Origin(source=name, path=(name,), topic="clicks", topic_id=ID, partition=0)
        provenance = provenance.with_partition(number, found)
    with pytest.raises(ConfigurationError, match=f"longer than {MAX_TEXT_BYTES} bytes"):
        provenance.encode()


@pytest.mark.long
def test_a_topic_that_grew_hundreds_of_times_is_encoded() -> None:
    provenance = Provenance()
    for number in range(800):
        provenance = provenance.with_partition(number, origin(number % 2, number // 2))
    assert len(provenance.encode()) < MAX_TEXT_BYTES
