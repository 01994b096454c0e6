"""A member of a consumer group with aiokafka: reads and commits until it is told to stop, then leaves."""

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from exchange import main, was_told_to_stop


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes when how many partitions were given."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to note."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.given.append([time.time(), len(assigned)])


async def join(bootstrap: Any, asked: Any) -> Any:
    """What it read, when it was given how many partitions, and the error that ended it."""
    given: list[Any] = []
    values, error = [], None
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=asked["group"],
        group_instance_id=asked["instance"],
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=asked["session_ms"],
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([asked["topic"]], listener=Listener(given))
    await consumer.start()
    while not was_told_to_stop():
        try:
            records = [record for found in (await consumer.getmany(timeout_ms=100)).values() for record in found]
            if records:
                await consumer.commit()
                values += [record.value.decode() for record in records]
        except (CommitFailedError, IllegalStateError):
            continue
        except KafkaError as failure:
            if failure.retriable:
                continue
            error = type(failure).__name__
            break
    await consumer.stop()
    return {"values": values, "given": given, "error": error}


if __name__ == "__main__":
    main({"member": lambda bootstrap, asked: asyncio.run(join(bootstrap, asked))})
