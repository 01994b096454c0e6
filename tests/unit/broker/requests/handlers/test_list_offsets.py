"""ListOffsets on a broker."""

from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.broker_in_process import NOW_MS, Start, batch


async def test_list_offsets(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("empty")
        await broker.produce("t", batch(b"a", b"b", timestamp_ms=1000))
        await broker.produce("t", batch(b"late", timestamp_ms=9000))
        await broker.produce("t", batch(b"c", b"d", timestamp_ms=3000))

        async def find(timestamp: int, name: str = "t", partition: int = 0, epoch: int = -1) -> tuple[int, int, int]:
            asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
            request = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[asked])], timeout_ms=1000
            )
            found = (await broker.ask(request)).topics[0].partitions[0]
            return found.error_code, found.timestamp, found.offset

        assert await find(-1) == (0, -1, 5)
        assert await find(-2) == (0, -1, 0)
        assert await find(-3) == (0, 9000, 2)
        assert await find(-4) == (0, -1, 0)
        assert await find(-5) == (0, -1, -1)
        assert await find(0) == (0, 1000, 0)
        assert await find(1001) == (0, 1001, 1)
        assert await find(1002) == (0, 9000, 2)
        assert await find(9001) == (0, -1, -1)
        assert await find(NOW_MS, "empty") == (0, -1, -1)
        assert await find(-1, "empty") == (0, -1, 0)
        assert await find(-3, "empty") == (0, -1, -1)
        assert (await find(-1, "nowhere"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await find(-1, epoch=4))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
