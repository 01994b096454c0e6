"""A member of a consumer group of ours: reads and commits until it is told to stop, then leaves."""

import sys
import time
from random import SystemRandom
from typing import Any

import structlog
import trio
from exchange import main, was_told_to_stop

from pipeline.client import (
    ClientConfig,
    GroupConfig,
    MessageStream,
    RebalanceListener,
    open_cluster,
    open_group_consumer,
    parse_addresses,
)

STOP_S = 30


class Listener(RebalanceListener):
    """Notes when how many partitions were given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    async def partitions_assigned(self, partitions: Any) -> None:
        self.given.append([time.time(), len(partitions)])


async def read(bootstrap: str, asked: Any) -> Any:
    """What it read, when it was given how many partitions, and the error that ended it."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    values: list[str] = []
    listener = Listener()
    config = GroupConfig(
        group_id=asked["group"],
        group_instance_id=asked["instance"],
        partition_assignment_strategy=tuple(asked["strategy"].split(",")),
        session_timeout_ms=asked["session_ms"],
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",  # type: ignore[arg-type]
        auto_commit_interval_ms=200,
    )

    async def take(stream: MessageStream) -> None:
        nonlocal values
        async for record in stream:
            values += [(record.value or b"").decode()]  # before the next one is asked for

    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap), metadata_max_age_ms=1000)) as cluster,
        open_group_consumer(cluster, config, rng=SystemRandom(), listener=listener) as group,
        trio.open_nursery() as nursery,
    ):
        for stream in (await group.create_message_streams({asked["topic"]: 2}))[asked["topic"]]:
            nursery.start_soon(take, stream)
        while not was_told_to_stop():  # standard input is no event
            await trio.sleep(0.05)
        await group.shutdown(STOP_S)
    return {"values": values, "given": listener.given, "error": None}


def member(bootstrap: Any, asked: Any) -> Any:
    return trio.run(read, bootstrap, asked)


if __name__ == "__main__":
    main({"member": member})
