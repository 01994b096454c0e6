"""A member of a consumer group with kafka-python: reads and commits until it is told to stop, then leaves."""

import time
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import CommitFailedError, KafkaError, RebalanceInProgressError

from exchange import main, was_told_to_stop

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes when how many partitions were given."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to note."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.given.append([time.time(), len(assigned)])


def member(bootstrap: Any, asked: Any) -> Any:
    """What it read, when it was given how many partitions, and the error that ended it."""
    given: list[Any] = []
    values, error = [], None
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=asked["group"],
        group_instance_id=asked["instance"],
        partition_assignment_strategy=[ASSIGNORS[asked["strategy"]]],
        session_timeout_ms=asked["session_ms"],
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([asked["topic"]], listener=Listener(given))
    while not was_told_to_stop():
        try:
            records = [record for found in consumer.poll(100).values() for record in found]
            if records:
                consumer.commit()
                values += [record.value.decode() for record in records]
        except (CommitFailedError, RebalanceInProgressError):
            continue
        except KafkaError as failure:
            if failure.retriable:
                continue
            error = type(failure).__name__
            break
    consumer.close()
    return {"values": values, "given": given, "error": error}


if __name__ == "__main__":
    main({"member": member})
