import kio.schema.errors
import pytest

from pipeline.errors import PipelineError
from pipeline.protocol.api import API, ApiKey
from pipeline.protocol.errors import ErrorCode, KafkaError

SERVED = {  # what living clients need, low versions included
    "PRODUCE": (0, 0, 13, 9),
    "FETCH": (1, 4, 18, 12),
    "LIST_OFFSETS": (2, 1, 11, 6),
    "METADATA": (3, 0, 13, 9),
    "API_VERSIONS": (18, 0, 4, 3),
    "CREATE_TOPICS": (19, 2, 7, 5),
    "DELETE_TOPICS": (20, 1, 6, 4),
    "INIT_PRODUCER_ID": (22, 0, 6, 2),
    "CREATE_PARTITIONS": (37, 0, 3, 2),
}


def test_the_table() -> None:
    assert {key.name: (key.key, key.min_version, key.max_version, key.flexible_since) for key in API.values()} == SERVED


@pytest.mark.parametrize("key", list(ApiKey))
def test_a_row_is_of_one_piece(key: ApiKey) -> None:
    assert API[key] is key and key == key.key
    assert key.request.API_KEY == key.response.API_KEY == key
    assert key.request.VERSIONS == key.response.VERSIONS
    assert key.request.FLEXIBLE_SINCE == key.response.FLEXIBLE_SINCE
    assert key.serves(key.min_version) and key.serves(key.max_version)
    assert not key.serves(key.min_version - 1) and not key.serves(key.max_version + 1)


def test_error_codes_are_kafkas() -> None:
    assert {(code.name, code.value, code.retriable) for code in ErrorCode} == {
        (code.name.upper(), int(code), code.retriable) for code in kio.schema.errors.ErrorCode
    }


def test_a_kafka_error_says_what_is_the_matter() -> None:
    error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-1 moved to broker 2")
    assert isinstance(error, PipelineError)
    assert (error.code, error.retriable) == (6, True)
    assert str(error) == "NOT_LEADER_OR_FOLLOWER: t-1 moved to broker 2"
    assert str(KafkaError(1)).startswith("OFFSET_OUT_OF_RANGE: The offset lies outside")


def test_a_code_newer_than_the_table() -> None:
    error = KafkaError(12345)
    assert (error.code, error.retriable) == (ErrorCode.UNKNOWN_SERVER_ERROR, False)
    assert str(error).startswith("error 12345: ")
