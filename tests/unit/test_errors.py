import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from pipeline.client.consumer.errors import PartitionBatchError, PartitionOffsetOutOfRangeError
from pipeline.client.registry.client import SchemaRegistryError
from pipeline.errors import (
    ConfigurationError,
    CorruptBatchError,
    DiskFullError,
    MemoryExhaustedError,
    NetworkError,
    NodeOwnedError,
    OpenedBatchTooLargeError,
    PipelineError,
    PromotedTopicError,
)
from pipeline.hadoop.load.job import BadRecordError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

ERRORS = [
    NetworkError("a:1 cannot be reached"),
    ConfigurationError("root", "is missing"),
    DiskFullError("/d", "no space"),
    MemoryExhaustedError(5, 4),
    OpenedBatchTooLargeError(5, 7),
    NodeOwnedError("/controller", b"1", None),
    PromotedTopicError("clicks was promoted", 7),
    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"),
    SchemaRegistryError(409, 409, "incompatible"),
    BadRecordError("clicks", 0, 7, "no schema id"),
    PartitionOffsetOutOfRangeError(TopicPartition("clicks", 0), 9, 0, 5),
    PartitionBatchError(TopicPartition("clicks", 0), CorruptBatchError("a wrong checksum", 3), 3, 5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_message_and_data_when_it_is_pickled_or_copied(error: PipelineError) -> None:
    error.add_note("a note")
    for twin in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(error, 0)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), repr(vars(twin))) == (str(error), repr(vars(error)))


def refuse() -> None:
    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")


def test_an_error_of_a_child_process_reaches_the_parent() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        error = processes.submit(refuse).exception(timeout=60)
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error.detail == "moved"
