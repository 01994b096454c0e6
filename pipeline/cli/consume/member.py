"""Reads as a member of a group, prints what the group gives it, and commits what was printed.

Invariant: an item of a stream is committed only after its text was written out, since the member asks for the next item
only then. So a member that ends at any moment leaves what it has not printed to the group.
"""

import math
import socket
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress

import trio

from pipeline.cli.consume.fetched import unopened_batch
from pipeline.cli.consume.options import PATTERN, ConsumeOptions
from pipeline.cli.consume.printing import Printer
from pipeline.cli.consume.reading import LOOK_S
from pipeline.cli.consume.selection import END
from pipeline.cli.terminal.connect import find_offsets_at, find_topic, randomness, wall_clock
from pipeline.cli.terminal.interruption import interrupted_first
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.consumption import ConsumptionObserver
from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.group_consumer import GroupConsumer, open_group_consumer
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.stream import MessageStream
from pipeline.client.streams.topic_filter import WhiteList
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST


class _Ends(RebalanceListener):
    """The current ends of the partitions that the group gives this member: where the command may end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.ends: dict[TopicPartition, int] = {}
        self.is_known = False

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Note where the partitions end now."""
        self.ends |= await find_offsets_at(self._cluster, partitions, LATEST)
        self.is_known = True

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget the partitions, which other members read to their ends."""
        for partition in partitions:
            self.ends.pop(partition, None)

    async def partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget the partitions, which other members read to their ends."""
        await self.partitions_revoked(partitions)


async def print_as_member(cluster: Cluster, options: ConsumeOptions, group: str, printer: Printer) -> None:
    """Print until all partitions of this member were read to the ends that they had, or for ever."""
    settings = {"auto_offset_reset": OffsetReset.EARLIEST, "auto_commit_interval_ms": 1000, **options.consumer}
    if options.selection.offset in END:
        settings["auto_offset_reset"] = OffsetReset.LATEST
    listener = _Ends(cluster)
    config = GroupConfig(group_id=group, **settings)
    async with AsyncExitStack() as stack:
        observer = None
        if options.datacenter is not None:
            observer = await stack.enter_async_context(_counted(cluster, group, options.datacenter))
        member = await stack.enter_async_context(
            open_group_consumer(cluster, config, rng=randomness(), listener=listener, observer=observer)
        )
        with interrupted_first():  # so that the group hears that the member leaves
            streams = await _open_streams(cluster, member, options.selection.topics)
            async with trio.open_nursery() as nursery:
                turn = trio.Lock()
                for stream in streams:
                    nursery.start_soon(_print_stream, member, stream, printer, turn)
                await _wait_for_end(streams, listener, printer, follow=options.follow)
                nursery.cancel_scope.cancel()


def _counted(cluster: Cluster, group: str, datacenter: str) -> AbstractAsyncContextManager[ConsumptionObserver]:
    """Return an observer that reports to the audit what the member has committed."""
    from pipeline.audit.counting.counted_consumers import counted_consumption

    return counted_consumption(
        cluster, group, datacenter=datacenter, host=socket.gethostname(), clock=wall_clock, rng=randomness()
    )


async def _open_streams(cluster: Cluster, member: GroupConsumer, topics: tuple[str, ...]) -> list[MessageStream]:
    if topics[0].startswith(PATTERN):
        return await member.create_message_streams_by_filter(WhiteList(topics[0]), 1)
    for topic in topics:
        await find_topic(cluster, topic)
    made = await member.create_message_streams(dict.fromkeys(topics, 1))
    return [stream for streams in made.values() for stream in streams]


async def _print_stream(member: GroupConsumer, stream: MessageStream, printer: Printer, turn: trio.Lock) -> None:
    while True:
        try:
            async for fetched in stream.batches():
                async with turn:
                    rest = await printer.put(fetched, math.inf)
                if rest is not None:  # the rest of the item is left to the group
                    with suppress(KeyError):
                        member.seek(fetched.topic_partition, rest)
                    return
        except PartitionBatchError as error:
            printer.tell_bad_batch(unopened_batch(error), stream.skip_batch(error.topic_partition))
        else:
            return


async def _wait_for_end(streams: list[MessageStream], listener: _Ends, printer: Printer, *, follow: bool) -> None:
    while not printer.is_full():
        printer.out.require_reader()
        if not follow and listener.is_known and _are_read(streams, listener.ends):
            return
        await trio.sleep(LOOK_S / 5)


def _are_read(streams: list[MessageStream], ends: Mapping[TopicPartition, int]) -> bool:
    positions = {partition: offset for stream in streams for partition, offset in stream.consumed().items()}
    return all(positions.get(partition, -1) >= end for partition, end in ends.items())
