"""Return of a failed cluster: its topic is saved where it differs from the promoted one, and becomes a replica of it.

Brokers have no request that truncates a log from its end, so the topic is deleted and created again, and a mirror
copies the promoted topic into it from the start. Steps:

1. Fence: `mirror.source` and `mirror.promoted` are set at the failed cluster, so that nobody appends to the old topic.
2. Save: records that the promoted topic lacks go to files; a manifest with all of them is written last.
3. Delete the old topic.
4. Create the new one with `mirror.source`, so that mirrors alone write to it; it takes over the partitions of a former
   replica of this name (`taking_over.py`).

Invariants:
A. The old topic is deleted only if a manifest of this promotion names all its records that may differ, and its logs
   still end where they ended when they were saved. Files and manifest have been synced before.
B. In doubt, records are saved: all of a partition whose copies cannot be compared, whose sums differ, or whose copies
   are damaged. So brokers of the hub read all copies and compute their checksums.
C. Each step is found again in the cluster or in the directory, so an interrupted command goes on when it is repeated.
D. One command at a time writes to a directory: a lock file excludes others.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from uuid import UUID

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.range_sums import ask_range_sums, can_sum_contents, can_sum_ranges
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_topic_settings_at
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics, list_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.diagnostics import get_logger
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.log.checkpoint import read_file, replace_file
from pipeline.log.files import Files
from pipeline.log.segment_names import LOG_SUFFIX, segment_path
from pipeline.mirror.failover.promotion import Promoter
from pipeline.mirror.failover.taking_over import take_over
from pipeline.mirror.journals.gaps import Gap
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.topics.replica_topics import MIRROR_SOURCE_CONFIG
from pipeline.model import Clock, TopicPartition
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.provenance import MIRROR_PARTITIONS, Provenance
from pipeline.records.batch import iterate_headers
from pipeline.records.batch_sums import BatchSums, SumKind

POLL_TIMEOUT_S = 30.0
LOCK = ".lock"

logger = get_logger(__name__)


class ReversalError(PipelineError):
    """A topic cannot become a replica of the promoted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRange:
    """Offsets `first` to `end - 1` of a partition of the old topic, and the file with their batches."""

    partition: int
    first: int
    end: int
    reason: str
    file: str
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecords:
    """Records of an old topic that were saved, for one promotion. `ends` are the old log end offsets."""

    topic: str
    topic_id: str
    promoted_at_ms: int
    ends: tuple[int, ...]
    ranges: tuple[SavedRange, ...]

    def encode(self) -> bytes:
        """Return the text of the file."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @staticmethod
    def decode(text: bytes) -> "SavedRecords":
        """Return the manifest in a file. Raises ReversalError."""
        try:
            document = json.loads(text)
            ranges = tuple(SavedRange(**saved) for saved in document.pop("ranges"))
            return SavedRecords(**{**document, "ends": tuple(document["ends"]), "ranges": ranges})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ReversalError(f"the manifest is unreadable: {error!r}. Choose an empty directory") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReversedTopic:
    """Outcome of a reversal. `is_done` is False after a dry run."""

    topic: str
    ranges: Sequence[SavedRange]
    is_done: bool


def ranges_to_save(
    start: int, end: int, copied_from: int, copied_up_to: int, gaps: Iterable[tuple[int, int]]
) -> list[tuple[int, int, str]]:
    """Return the ranges of an old log (`start` to `end`) that its replica lacks: first offset, offset after, reason.

    The replica has offsets `copied_from` to `copied_up_to`, except for `gaps`, which are inclusive.
    """
    found = [(start, min(end, copied_from), "deleted in the hub or never copied")]
    found += [
        (max(start, copied_from, first), min(end, copied_up_to, last + 1), "in the gap ledger")
        for first, last in sorted(gaps)
    ]
    found.append((max(start, copied_up_to, copied_from), end, "behind the promotion"))
    merged: list[tuple[int, int, str]] = []
    for first, after, reason in found:
        begin = max(first, merged[-1][1] if merged else first)
        if begin < after:
            merged.append((begin, after, reason))
    return merged


class Reverser:
    """Reverses topics of one failed cluster, `old`, of the name `source` in the hub's partition table."""

    def __init__(
        self,
        hub: Cluster,
        old: Cluster,
        source: str,
        hub_name: str,
        directory: Path,
        files: Files,
        *,
        clock: Clock,
        rng: Random,
        timeout_s: float,
    ) -> None:
        self._hub = hub
        self._old = old
        self._source = source
        self._hub_name = hub_name
        self._directory = directory
        self._files = files
        self._clock = clock
        self._rng = rng
        self._timeout_s = timeout_s
        self._promoter = Promoter(old, clock=clock, timeout_s=timeout_s)

    async def reverse(
        self, topic: str, entries: Mapping[TopicPartition, Assignment], gaps: Sequence[Gap], *, dry_run: bool = False
    ) -> ReversedTopic:
        """Save what only the old topic has, and make it a replica; with `dry_run`, only list the ranges to save.

        `entries` are the hub's partition table by replica partition, `gaps` its gap ledger. Raises ReversalError,
        StorageError, KafkaError, NetworkError, DeadlineExceededError. Nothing is deleted unless it was saved.
        """
        promotion, topic_id = await self._check(topic, entries)
        if dry_run:
            return await self._reverse(topic, topic_id, promotion, gaps, dry_run=True)
        self._files.make_directory(self._directory)
        self._files.sync_directory(self._directory.parent)
        lock = self._files.lock(self._directory / LOCK)
        if lock is None:  # invariant D
            raise ReversalError(f"another command writes to {self._directory}: wait until it has ended")
        try:
            return await self._reverse(topic, topic_id, promotion, gaps, dry_run=False)
        finally:
            lock.release()

    async def _reverse(
        self, topic: str, topic_id: UUID, promotion: Promotion, gaps: Sequence[Gap], *, dry_run: bool
    ) -> ReversedTopic:
        manifest = self._read_manifest(topic, topic_id, promotion)
        present = (await list_topics(self._old, timeout_s=self._timeout_s)).get(topic)
        if present is not None and present.id != topic_id:
            await self._check_replica(topic)
            if not dry_run:
                await self._take_over(topic)
            return ReversedTopic(topic=topic, ranges=() if manifest is None else manifest.ranges, is_done=True)
        if present is None and manifest is None:
            raise ReversalError(f"{topic} does not exist in {self._source}: there is nothing to save. Start the mirror")
        if present is not None:
            if dry_run:
                ends = await self._offsets(self._old, topic, len(present.partitions), LATEST)
                return ReversedTopic(topic=topic, ranges=await self._plan(topic, promotion, ends, gaps), is_done=False)
            behind = [
                number for number, each in sorted(present.partitions.items()) if set(each.isr) != {*each.replicas}
            ]
            if behind:  # a replica that is away may have records that a new leader lost
                reason = f"replicas of {TopicPartition(topic, behind[0])} of {self._source} are not in sync"
                raise ReversalError(f"{reason}: start all brokers there, and wait until they are")
            await self._fence(topic)
            ends = await self._promoter.final_ends(topic, trio.current_time() + self._timeout_s)
            if manifest is None:
                ranges = [await self._save(topic, each) for each in await self._plan(topic, promotion, ends, gaps)]
                manifest = SavedRecords(
                    topic=topic,
                    topic_id=str(topic_id),
                    promoted_at_ms=promotion.at_ms,
                    ends=ends,
                    ranges=tuple(ranges),
                )
                replace_file(self._files, self._manifest_path(topic), manifest.encode())
            if manifest.ends != ends:  # invariant A
                reason = f"{topic} of {self._source} ends at {ends}, and was saved up to {manifest.ends}"
                raise ReversalError(f"{reason}: somebody wrote to it. Choose an empty directory, and run this again")
            await delete_topics(self._old, [topic], missing_ok=True, timeout_s=self._timeout_s)
        assert manifest is not None
        if not dry_run:
            await self._create(topic)
        return ReversedTopic(topic=topic, ranges=manifest.ranges, is_done=not dry_run)

    async def _check(self, topic: str, entries: Mapping[TopicPartition, Assignment]) -> tuple[Promotion, UUID]:
        """Return the hub's promotion of the topic, and the id of the old topic. Raises ReversalError."""
        told = await describe_topic_settings_at(self._hub, None, topic, (MIRROR_PROMOTED,), timeout_s=self._timeout_s)
        promotion = Promotion.parse(told[MIRROR_PROMOTED]) if told.get(MIRROR_PROMOTED) else None
        if promotion is None or promotion.ends is None:
            raise ReversalError(f"{topic} of the hub was not promoted: `pipeline mirror promote` comes first")
        await self._old.refresh(timeout_s=self._timeout_s)
        ids = set()
        for number in range(len(promotion.ends)):
            entry = entries.get(TopicPartition(topic, number))
            own = TopicPartition(topic, number)
            if entry is None or (entry.source.cluster, entry.source.partition) != (self._source, own):
                reason = f"{own} of the hub is not a copy of {self._source}/{own}"
                raise ReversalError(f"{reason}. Only topics of a single source, with its name, can be reversed")
            ids.add(entry.source.topic_id)
            recorded, found = entry.source.cluster_id, self._old.view.cluster_id
            if recorded is None or recorded != found:
                raise ReversalError(f"the addresses lead to cluster {found}, but {self._source} is cluster {recorded}")
        if len(ids) != 1 or ZERO_UUID in ids:
            raise ReversalError(f"the partition table has no single topic id of {topic} in {self._source}")
        return promotion, ids.pop()

    async def _check_replica(self, topic: str) -> None:
        """Raise ReversalError if a recreated topic is not the replica that step 4 creates."""
        names = (MIRROR_SOURCE_CONFIG, MIRROR_PROMOTED)
        told = await describe_topic_settings_at(self._old, None, topic, names, timeout_s=self._timeout_s)
        if told.get(MIRROR_SOURCE_CONFIG) != self._hub_name or told.get(MIRROR_PROMOTED):
            reason = f"{topic} was deleted and created again in {self._source}, and is no replica of {self._hub_name}"
            raise ReversalError(f"{reason}: it is left alone")

    async def _fence(self, topic: str) -> None:
        """Let nobody append to the old topic (step 1)."""
        names = (MIRROR_SOURCE_CONFIG, MIRROR_PROMOTED)
        told = await describe_topic_settings_at(self._old, None, topic, names, timeout_s=self._timeout_s)
        if told.get(MIRROR_SOURCE_CONFIG) and told.get(MIRROR_PROMOTED):
            return
        if told.get(MIRROR_SOURCE_CONFIG):
            raise ReversalError(f"{topic} of {self._source} is a replica of {told[MIRROR_SOURCE_CONFIG]} already")
        resource = ConfigResource(ResourceType.TOPIC, topic)
        if told.get(MIRROR_PROMOTED):  # of an earlier failover the other way
            await alter_configs(self._old, {resource: {MIRROR_PROMOTED: None}}, timeout_s=self._timeout_s)
        fence = {MIRROR_SOURCE_CONFIG: self._hub_name, MIRROR_PROMOTED: Promotion(at_ms=self._clock()).encode()}
        await alter_configs(self._old, {resource: fence}, timeout_s=self._timeout_s)

    async def _plan(
        self, topic: str, promotion: Promotion, ends: Sequence[int], gaps: Sequence[Gap]
    ) -> list[SavedRange]:
        """Return the ranges to save."""
        assert promotion.ends is not None
        starts = await self._offsets(self._old, topic, len(ends), EARLIEST)
        copied_from = await self._offsets(self._hub, topic, len(promotion.ends), EARLIEST)
        found = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            partition = TopicPartition(topic, number)
            if number >= len(promotion.ends):  # grown since the promotion
                ranges = [(start, end, "behind the promotion")] if start < end else []
            else:
                known = [
                    (gap.first, gap.last) for gap in gaps if (gap.source, gap.replica) == (self._source, partition)
                ]
                copied_up_to = promotion.ends[number]
                ranges = ranges_to_save(start, end, copied_from[number], copied_up_to, known)
                begin, after = max(start, copied_from[number]), min(end, copied_up_to)
                if begin < after and not await self._is_equal(partition, begin, after):  # invariant B
                    ranges = [(start, end, "the copy differs or cannot be compared")]
            directory = self._directory / str(partition)
            found += [
                SavedRange(
                    partition=number,
                    first=first,
                    end=after,
                    reason=reason,
                    file=str(segment_path(directory, first, LOG_SUFFIX).relative_to(self._directory)),
                )
                for first, after, reason in ranges
            ]
        return found

    async def _is_equal(self, partition: TopicPartition, first: int, end: int) -> bool:
        """True if both clusters have equal batches in this range, by bytes or else by contents (other codecs)."""
        try:
            return await self._have_equal_sums(
                partition, first, end, SumKind.HEADERS, can_sum_ranges
            ) or await self._have_equal_sums(partition, first, end, SumKind.CONTENTS, can_sum_contents)
        except PipelineError as error:
            logger.warning("copies_not_compared", partition=str(partition), error=str(error))
            return False

    async def _have_equal_sums(
        self,
        partition: TopicPartition,
        first: int,
        end: int,
        kind: SumKind,
        can_sum: Callable[[Cluster, TopicPartition], Awaitable[bool]],
    ) -> bool:
        totals = []
        for cluster in (self._hub, self._old):
            await cluster.topic(partition.topic, timeout_s=self._timeout_s)
            if not await can_sum(cluster, partition):
                return False
            total, position = BatchSums(), first
            while position < end:
                is_deep = cluster is self._hub  # the old records may be deleted only if their copies can be read
                found = await ask_range_sums(
                    cluster, partition, position, end, is_deep=is_deep, kind=kind, timeout_s=self._timeout_s
                )
                if found.damage is not None or found.next_offset <= position:
                    return False
                total, position = total + found.sums, found.next_offset
            totals.append(total)
        return totals[0].is_equal_to(totals[1]) and not any(total.damaged_batches for total in totals)

    async def _save(self, topic: str, planned: SavedRange) -> SavedRange:
        """Write the batches of a range to its file, synced (step 2). The first may begin before the range."""
        partition = TopicPartition(topic, planned.partition)
        path = self._directory / planned.file
        self._files.make_directory(path.parent)
        file = self._files.open(path, create=True)
        file.truncate(0)
        size, position = 0, planned.first
        async with open_consumer(self._old, ConsumerConfig()) as consumer:
            consumer.assign({partition: planned.first})
            while position < planned.end:
                polled = await consumer.poll_batches(POLL_TIMEOUT_S)
                if not polled:
                    raise DeadlineExceededError(f"{partition} could not be read from offset {position} on")
                for batches in polled:
                    taken = 0
                    for place, header in iterate_headers(batches.data):
                        if header.base_offset < planned.end:
                            taken = place + header.size_bytes
                    file.write_at(batches.data[:taken], size)
                    size, position = size + taken, batches.next_offset
        file.sync()
        self._files.sync_directory(path.parent)
        self._files.sync_directory(self._directory)
        return SavedRange(**{**asdict(planned), "bytes": size})

    def _read_manifest(self, topic: str, topic_id: UUID, promotion: Promotion) -> SavedRecords | None:
        """Return the manifest of an earlier run, None if there is none. Raises ReversalError."""
        text = read_file(self._files, self._manifest_path(topic))
        if text is None:
            return None
        manifest = SavedRecords.decode(text)
        if (manifest.topic_id, manifest.promoted_at_ms) != (str(topic_id), promotion.at_ms):
            raise ReversalError(f"{self._directory} holds records of another failover: choose an empty directory")
        for saved in manifest.ranges:
            path = self._directory / saved.file
            if not self._files.exists(path) or self._files.size(path) != saved.bytes:
                raise ReversalError(f"{path} has not the {saved.bytes} bytes that were saved: restore the file")
        return manifest

    async def _create(self, topic: str) -> None:
        """Create the replica with as many partitions as the hub's topic has (step 4)."""
        count = len((await list_topics(self._hub, timeout_s=self._timeout_s))[topic].partitions)
        replicas = await replicas_for(self._old, timeout_s=self._timeout_s)
        # No mirror writes before it has entered whose copy each partition is: not one that was paused all the time.
        configs = {MIRROR_SOURCE_CONFIG: self._hub_name, MIRROR_PARTITIONS: Provenance().encode()}
        new = NewTopic(name=topic, partitions=count, replication_factor=replicas, configs=configs)
        await create_topics(self._old, [new], exist_ok=True, timeout_s=self._timeout_s)
        await self._check_replica(topic)
        await self._take_over(topic)

    async def _take_over(self, topic: str) -> None:
        await take_over(
            self._old, self._hub, self._hub_name, topic, clock=self._clock, rng=self._rng, timeout_s=self._timeout_s
        )

    async def _offsets(self, cluster: Cluster, topic: str, count: int, position: int) -> tuple[int, ...]:
        wanted = {TopicPartition(topic, number): position for number in range(count)}
        found = await list_offsets(cluster, wanted, timeout_s=self._timeout_s)
        return tuple(listed.offset for _, listed in sorted(found.items()))

    def _manifest_path(self, topic: str) -> Path:
        return self._directory / f"{topic}.json"
