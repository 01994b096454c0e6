"""A topic that returned: it takes over the replica partitions of the topic of its name that was deleted.

A reversal creates a replica topic anew. The cluster's partition table may know the former replica, as a copy of a topic
that was deleted at its source. Without more, a mirror would ask its user, and copy into partitions behind the old ones,
whose numbers are not those of the source: such a topic could not be reversed again.

Invariants:

A. No partition is taken over unless it holds no records: those of a former topic would count as the new one's.
B. Nor if the gap ledger has gaps of the replica: the new topic has other records at these offsets, which a mirror would
   not copy, and an audit would not miss.
C. A command that was interrupted is repeated: partitions that were taken over may have records and gaps by then.
"""

from dataclasses import replace
from random import Random

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC
from pipeline.mirror.journals.table import TABLE_TOPIC, Assignment, Proposal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.schema import ZERO_UUID


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
    if left and GAPS_TOPIC in present and await _has_gaps(cluster, {entry.replica for entry in left}, clock, rng):
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


async def _has_gaps(cluster: Cluster, replicas: set[TopicPartition], clock: Clock, rng: Random) -> bool:
    gaps = GapJournal(cluster, clock=clock, rng=rng)
    await gaps.read_on()
    return any(gap.replica in replicas for gap in gaps.ledger)
