"""A topic that returned: it takes over the replica partitions of the topic of its name that was deleted.

A reversal creates a replica topic anew. The cluster's partition table may know the former replica, as a copy of a topic
that was deleted at its source. Without more, a mirror would ask its user, and copy into partitions behind the old ones,
whose numbers are not those of the source: such a topic could not be reversed again.

Invariants:

A. No partition is taken over unless it holds no records: those of a former topic would count as the new one's.
B. Nor if the gap ledger has gaps of the replica at which the new topic may have records: a mirror would not copy them,
   and an audit would not miss them. A gap before the new topic's first offset remains one: retention of a live cluster
   leaves it at the first copy of each older topic.
C. A command that was interrupted is repeated: partitions that were taken over may have records and gaps by then.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.mirror.failover.missing_records import FIRST_BATCH_BYTES
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, GapReason
from pipeline.mirror.journals.table import TABLE_TOPIC, Assignment, Proposal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import read_header

_DELETED = (GapReason.START, GapReason.RETENTION)


async def take_over(
    cluster: Cluster, origin: Cluster, source: str, topic: str, *, clock: Clock, rng: Random, timeout_s: float
) -> bool:
    """Let the topic of `origin`, which `cluster` knows as `source`, take over the replica of its name in `cluster`.

    Return True if the table has the new topic. Raises PipelineError.
    """
    present = await list_topics(cluster, timeout_s=timeout_s)
    if TABLE_TOPIC not in present:
        return False
    journal = TableJournal(cluster, lambda _skipped: None)
    await journal.read_on()
    entries = [entry for entry in journal.table.newest_assignments() if entry.replica.topic == topic]
    topic_id = (await list_topics(origin, timeout_s=timeout_s))[topic].id
    if not entries or not _are_of(entries, source) or topic_id == ZERO_UUID:
        return False
    numbers = present[topic].partitions
    left = [entry for entry in entries if entry.source.topic_id != topic_id]  # invariant C
    if left and GAPS_TOPIC in present:
        gaps = GapJournal(cluster, clock=clock, rng=rng)
        await gaps.read_on()
        firsts = await _first_offsets(origin, [entry.replica for entry in left], timeout_s)
        mine = [gap for gap in gaps.ledger if gap.replica in firsts]
        if any(gap.last >= firsts[gap.replica] or gap.reason not in _DELETED for gap in mine):
            return False
    wanted = dict.fromkeys((entry.replica for entry in left if entry.replica.partition in numbers), LATEST)
    ends = await list_offsets(cluster, wanted, timeout_s=timeout_s)
    if any(found.offset for found in ends.values()):
        return False
    proposals = [
        Proposal(
            source=replace(entry.source, topic_id=topic_id),
            replica_topic=topic,
            replaces=entry.source.topic_id,
            takes_over=True,
        )
        for entry in left
    ]
    await journal.propose(proposals, clock=clock, rng=rng)
    return all(journal.table.assignment(source, each.source.partition) == _next(each) for each in proposals)


def _are_of(entries: list[Assignment], source: str) -> bool:
    """True if the entries are copies of one source's topic, each under its own number."""
    return all(
        entry.source.cluster == source
        and entry.source.partition == entry.replica
        and entry.source.topic_id != ZERO_UUID
        for entry in entries
    )


def _next(proposal: Proposal) -> Assignment:
    return Assignment(source=proposal.source, replica=proposal.source.partition)


async def _first_offsets(
    origin: Cluster, partitions: Iterable[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the offset of the first batch of each partition, or its end if the log is empty; 0 if that is not known.

    The log start offset does not say it: a replica that begins behind a gap has 0. Raises PipelineError.
    """
    wanted = list(partitions)
    start = await list_offsets(origin, dict.fromkeys(wanted, EARLIEST), timeout_s=timeout_s)
    end = await list_offsets(origin, dict.fromkeys(wanted, LATEST), timeout_s=timeout_s)
    firsts = {each: end[each].offset if start[each].offset == end[each].offset else 0 for each in wanted}
    unread = {each: start[each].offset for each in wanted if start[each].offset < end[each].offset}
    with trio.move_on_after(timeout_s):
        async with open_consumer(origin, ConsumerConfig(max_partition_bytes=FIRST_BATCH_BYTES)) as consumer:
            consumer.assign(unread)
            while unread:
                for batches in await consumer.poll_batches(timeout_s):
                    if unread.pop(batches.topic_partition, None) is not None:
                        firsts[batches.topic_partition] = read_header(batches.data, 0).base_offset
                        consumer.remove(batches.topic_partition)
    return firsts
