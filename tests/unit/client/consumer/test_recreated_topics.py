"""Topics that were recreated: a reader that names the new topic's id gets its records."""

from pathlib import Path

import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.records.record import iterate_records
from tests.support.brokers import serving_cluster
from tests.support.mirrors import CLICKS, DEADLINE_S, make, publish


async def test_a_client_whose_metadata_are_older_than_the_topic_reads_it_soon(tmp_path: Path) -> None:
    found: list[bytes | None] = []
    async with serving_cluster(tmp_path) as cluster, open_cluster(cluster.config) as other:
        await make(other)
        old_id = (await cluster.topic("clicks")).id
        await delete_topics(other, ["clicks"])
        await make(other)
        await publish(other, b"new")
        new_id = (await other.topic("clicks")).id
        assert cluster.view.topics["clicks"].id == old_id != new_id
        async with open_consumer(cluster, ConsumerConfig(max_wait_ms=50)) as consumer:
            with trio.move_on_after(DEADLINE_S):
                while not found:
                    consumer.add(CLICKS, 0, new_id)
                    try:
                        for batches in await consumer.poll_batches():
                            found += [record.value for record in iterate_records(batches.data)]
                    except PartitionFetchError:
                        await trio.sleep(0.02)
    assert found == [b"new"]
