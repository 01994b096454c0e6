import pytest
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as KioTopicPartition

from pipeline.client.consumer.consumer_protocol import decode_assignment
from pipeline.errors import ProtocolError
from pipeline.model import TopicPartition


def encoded(topics: dict[str, list[int]]) -> bytes:
    import io

    from kio.serial import entity_writer

    buffer = io.BytesIO()
    assigned = tuple(
        KioTopicPartition(topic=name, partitions=tuple(indexes))  # type: ignore[arg-type]
        for name, indexes in topics.items()
    )
    entity_writer(ConsumerProtocolAssignment)(
        buffer, ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=b"x")
    )
    return b"\0\3" + buffer.getvalue()


def test_partitions_of_an_assignment() -> None:
    assert decode_assignment(encoded({"clicks": [0, 2], "ünter": [1]})) == (
        TopicPartition("clicks", 0),
        TopicPartition("clicks", 2),
        TopicPartition("ünter", 1),
    )


def test_a_member_without_partitions() -> None:
    assert decode_assignment(b"") == ()
    assert decode_assignment(encoded({})) == ()


@pytest.mark.parametrize("size", range(1, 20))
def test_a_truncated_assignment_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_assignment(encoded({"clicks": [0, 2]})[:size])
