"""Rules of replicas and of the gap ledger at the end, when every partition has caught up."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pipeline.model import TopicPartition
from pipeline.testing.simulation.cluster import bytes_of_log, records_of
from pipeline.testing.simulation.history import Acknowledged
from pipeline.testing.simulation.mirrors.journals import RecordedGap, SourceName
from pipeline.testing.simulation.mirrors.logs import LogContent, compare, differ_within
from pipeline.testing.simulation.mirrors.site import SimulatedSite, content_of, leader_of

TRUNCATED = "truncated"
RECREATED = "recreated"


def final_problems(site: SimulatedSite, acknowledged: Mapping[str, Sequence[Acknowledged]]) -> Iterator[str]:
    """Yield the problems of all partitions. `acknowledged`: the records of each source."""
    present = site.partitions
    for source in present:
        yield from _check_partition(site, source, acknowledged[source.source])
    for source, replica in site.journals.assigned.items():
        if source not in present:
            yield from _check_replaced(site, source, replica)
    yield from _check_owners(site, present)


def _check_partition(site: SimulatedSite, source: SourceName, acknowledged: Sequence[Acknowledged]) -> Iterator[str]:
    replica_name = site.journals.assigned[source]
    leader, replica = site.leader(source), leader_of(site.hub, replica_name)
    if leader is None or replica is None:
        yield f"{source}: without a leader at the end"
        return
    explained = site.journals.explained(replica_name)
    theirs, ours = (content_of(each, by_contents=site.plan.recompresses) for each in (leader, replica))
    had = site.had[source.source].batches_of(source)
    yield from compare(f"{source} in {replica_name}", theirs, ours, explained, had)
    for gap in site.journals.gaps():
        if gap.replica == replica_name and not _is_true(site, source, gap, theirs, ours):
            yield f"{source}: {gap} is in the ledger, and nothing is missing there"
    kept = records_of(bytes_of_log(leader, leader.log.log_end_offset))
    copied = records_of(bytes_of_log(replica, replica.log.log_end_offset))
    for record in acknowledged:
        offset = record.offset
        is_kept = record.topic_partition == source.partition and kept.get(offset) == record.value
        if is_kept and copied.get(offset) != record.value and not explained.covers(offset, offset):
            yield f"{source}: {record.value!r}, acknowledged at {offset}, is not in the replica"


def _is_true(site: SimulatedSite, source: SourceName, gap: RecordedGap, theirs: LogContent, ours: LogContent) -> bool:
    if gap.last is None:
        return False  # the topic is still there
    start = max(theirs.start, site.starts.get(source, 0))
    if gap.reason != TRUNCATED:
        return gap.last < start
    return site.plan.sources[source.source].loses_records and (
        site.plan.hub.loses_records or gap.first < start or differ_within(theirs, ours, gap.first, gap.last)
    )


def _check_replaced(site: SimulatedSite, source: SourceName, replica_name: TopicPartition) -> Iterator[str]:
    """The replica of a topic that was deleted has what the topic had up to an offset; the ledger names no later one."""
    replica = leader_of(site.hub, replica_name)
    if replica is None:
        yield f"{source}: {replica_name} is without a leader at the end"
        return
    ours = content_of(replica, by_contents=site.plan.recompresses)
    had = site.had[source.source].batches_of(source)
    gone = LogContent(start=ours.end, end=ours.end, batches=())
    yield from compare(f"{source} in {replica_name}", gone, ours, site.journals.explained(replica_name), had)
    ends = [gap.first for gap in site.journals.gaps() if gap.replica == replica_name and gap.reason == RECREATED]
    if not any(site.ended.get(source, 0) <= end <= ours.end for end in ends):  # an append under way may come later
        began = f"ended at {site.ended.get(source, 0)} when the topic was deleted, and ends at {ours.end}"
        yield f"{source}: was created again, and its replica {began}; the ledger has {ends}"


def _check_owners(site: SimulatedSite, present: Collection[SourceName]) -> Iterator[str]:
    """Each gap names the replica of its source, and the id of the topic if that was created again."""
    assigned = site.journals.assigned
    for gap in site.journals.gaps():
        names = [name for name, replica in assigned.items() if replica == gap.replica]
        if not names or names[0][:2] != (gap.source, gap.partition):
            yield f"{gap} is of the replica of {names}"
        elif gap.reason == RECREATED and (names[0] in present or names[0].topic_id != gap.topic_id):
            yield f"{gap} is of {names[0]}, whose topic was not created again"
