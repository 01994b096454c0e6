"""The offsets that `consume` reads: where each partition begins and ends."""

import re
from dataclasses import dataclass

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import find_offsets_at, find_topic
from pipeline.cli.terminal.times import read_time_ms
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

FIRST = frozenset({"earliest", "beginning"})
END = frozenset({"latest", "end"})
MAX_OFFSET_DIGITS = 11
"""A longer number in --until is a time."""

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Selection:
    """Options that select records. `last` counts offsets of each partition; `until` is a time or an offset."""

    topics: tuple[str, ...]
    partition: int | None = None
    offset: str = "earliest"
    from_time: str | None = None
    until: str | None = None
    last: int | None = None

    @property
    def until_offset(self) -> int | None:
        """The offset before which all partitions end, if `until` is one."""
        if self.until is not None and re.fullmatch(f"[0-9]{{1,{MAX_OFFSET_DIGITS}}}", self.until):
            return int(self.until)
        return None

    def check(self) -> None:
        """Raise ConfigurationError for a time that is none."""
        if self.from_time is not None:
            read_time_ms("--from", self.from_time)
        if self.until is not None and self.until_offset is None:
            read_time_ms("--until", self.until)


async def find_ranges(cluster: Cluster, selection: Selection) -> tuple[Offsets, Offsets]:
    """Return the first offset to read and the one to end before, of each selected partition."""
    partitions: list[TopicPartition] = []
    for name in selection.topics:
        topic = await find_topic(cluster, name)
        numbers = sorted(topic.partitions)
        if selection.partition is not None:
            if selection.partition not in topic.partitions:
                output.exit_with(f"topic {name} has partitions {numbers[0]} to {numbers[-1]}", output.EXIT_USAGE)
            numbers = [selection.partition]
        partitions += [TopicPartition(name, number) for number in numbers]
    log_ends = await find_offsets_at(cluster, partitions, LATEST)
    ends = log_ends
    if (until := selection.until_offset) is not None:
        ends = {partition: min(end, until) for partition, end in log_ends.items()}
    elif selection.until is not None:
        ends = await _at_time(cluster, log_ends, read_time_ms("--until", selection.until))
    return await _starts(cluster, selection, partitions, log_ends), ends


def known_partitions(cluster: Cluster, selection: Selection) -> list[TopicPartition]:
    """Return the selected partitions by the newest metadata; none if the selection names one."""
    topics = {} if selection.partition is not None else cluster.view.topics
    return [
        TopicPartition(name, number)
        for name in selection.topics
        if name in topics
        for number in sorted(topics[name].partitions)
    ]


async def _starts(
    cluster: Cluster, selection: Selection, partitions: list[TopicPartition], log_ends: Offsets
) -> Offsets:
    if selection.from_time is not None:
        return await _at_time(cluster, log_ends, read_time_ms("--from", selection.from_time))
    if selection.last is not None:
        first = await find_offsets_at(cluster, partitions, EARLIEST)
        return {partition: max(first[partition], end - selection.last) for partition, end in log_ends.items()}
    if selection.offset in FIRST:
        return await find_offsets_at(cluster, partitions, EARLIEST)
    if selection.offset in END:
        return log_ends
    if not re.fullmatch("[0-9]{1,19}", selection.offset):
        output.exit_with(f"--offset {selection.offset[:20]}: give earliest, latest, or an offset", output.EXIT_USAGE)
    start = int(selection.offset)
    if all(start > end for end in log_ends.values()):
        ended = ", ".join(f"partition {p.partition} at {end}" for p, end in log_ends.items())
        named = f"topic {selection.topics[0]}" if len(selection.topics) == 1 else "all topics"
        output.exit_with(f"--offset {start} is past the end of {named}: {ended}")
    return dict.fromkeys(partitions, start)


async def _at_time(cluster: Cluster, log_ends: Offsets, time_ms: int) -> Offsets:
    """Return the first offset whose record is at or after the time; the end of a log without such a record."""
    found = await find_offsets_at(cluster, log_ends, time_ms)
    return {
        partition: end if found[partition] < 0 else min(end, found[partition]) for partition, end in log_ends.items()
    }
