"""A member of a group as a process, which notes in a file what it was assigned and handed out, and what it committed.

`python -m tests.support.group_member BOOTSTRAP FILE SEED SETTINGS`, until SIGTERM. Lines, with times of the monotonic
clock that all processes share: `A time partition...` assigned, `H time partition offset value` handed out, at a time at
which the member still held the partition, `C time partition offset` committed, after the coordinator's answer.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import structlog
import trio

from pipeline.client import (
    ClientConfig,
    CommittedOffset,
    GroupConfig,
    MessageStream,
    RebalanceListener,
    TopicPartition,
    open_cluster,
    open_group_consumer,
    parse_addresses,
)
from pipeline.client.group.offsets import MemberOffsets

TOPIC = "t"
LONGEST_ITEM_S = 0.004


class Notes(RebalanceListener):
    """The file. Each line is written at once, so that a death loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.held_at_ns = 0

    def note(self, kind: str, at_ns: int, *values: int) -> None:
        os.write(self._file, " ".join(map(str, (kind, at_ns, *values))).encode() + b"\n")

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.note("A", time.monotonic_ns(), *(number for _, number in partitions))

    def timed(self, holds: Callable[[], bool]) -> Callable[[], bool]:
        """Have each look at the lease leave its time."""

        def look() -> bool:
            at_ns = time.monotonic_ns()
            is_held = holds()
            if is_held:
                self.held_at_ns = at_ns
            return is_held

        return look


def note_commits(notes: Notes) -> None:
    """Have each commit that was answered leave a line."""
    commit = MemberOffsets.commit

    async def noted(self: MemberOffsets, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float) -> bool:
        is_done = await commit(self, offsets, timeout_s)
        if is_done:
            for topic_partition, place in offsets.items():
                notes.note("C", time.monotonic_ns(), topic_partition.partition, place.offset)
        return is_done

    MemberOffsets.commit = noted  # type: ignore[method-assign]


async def take(stream: MessageStream, notes: Notes, random: Random) -> None:
    async for record in stream:
        notes.note("H", notes.held_at_ns, record.topic_partition.partition, record.offset, int(record.value or b""))
        await trio.sleep(random.uniform(0, LONGEST_ITEM_S))


async def main(bootstrap: str, path: str, seed: str, settings: str) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    notes, random = Notes(Path(path)), Random(seed)
    note_commits(notes)
    given: dict[str, Any] = json.loads(settings)
    client = ClientConfig(bootstrap=parse_addresses(bootstrap), request_timeout_ms=5_000)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with (
            open_cluster(client) as cluster,
            open_group_consumer(cluster, GroupConfig(**given), rng=random, listener=notes) as group,
            trio.open_nursery() as nursery,
        ):
            (stream,) = (await group.create_message_streams({TOPIC: 1}))[TOPIC]
            stream._holds = notes.timed(stream._holds)
            nursery.start_soon(take, stream, notes, random)
            async for _ in signals:
                await group.shutdown(5)
                break


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
