import importlib
import pkgutil

import kio.schema.errors
import pytest

from pipeline.errors import PipelineError
from pipeline.protocol.api import API, ApiKey
from pipeline.protocol.errors import ErrorCode, KafkaError


def versions_of_kafka_4(key: ApiKey) -> tuple[int, int]:
    package = importlib.import_module(f"kio.schema.{key.name.lower()}")
    versions = [int(module.name[1:]) for module in pkgutil.iter_modules(package.__path__) if module.name[1:].isdigit()]
    return min(versions), max(versions)


@pytest.mark.parametrize("key", list(ApiKey))
def test_the_versions_are_those_of_kafka_4(key: ApiKey) -> None:
    first, last = versions_of_kafka_4(key)
    # Clients of librdkafka before 2.10 stop compressing where Produce does not begin with 0.
    assert (key.min_version, key.max_version) == (0 if key is ApiKey.PRODUCE else first, last)


@pytest.mark.parametrize("key", list(ApiKey))
def test_a_row_is_of_one_piece(key: ApiKey) -> None:
    assert API[key] is key and key == key.value
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
