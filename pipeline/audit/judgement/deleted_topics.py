"""Topics that were deleted: which hours were closed before, and verdicts that hold although the topic is gone. Pure.

Invariants:
A. A broker's life signs vouch for the topics that it has. So they say nothing about the last records of a topic that
   was deleted before its counts were reported: hours that ended later than the topic was last known are UNKNOWN.
B. A topic was last known when its cluster listed it, or when a counter of a broker reported it. What was appended
   before that is reported `REPORTED_WITHIN_MS` later.
C. The verdict on an hour of a topic whose name was given to another one holds if it rested on all parties, nothing was
   counted of the hour since, and nothing differs that had not: another cluster may have the topic, too. Counts of
   replicas are left out: their route is that of the new topic.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.audit.judgement.hour_verdicts import TopicHour
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import Expectations, Status, Witness
from pipeline.audit.judgement.ways import Way
from pipeline.audit.ledger.keys import LIFE_BITS, PARTITION_BITS
from pipeline.audit.ledger.ledger import Ledger, Series
from pipeline.audit.ledger.position_table import NEVER_MS

REPORTED_WITHIN_MS: Final = 60_000
"""Time within which what a broker has appended is in a report: two of the longest intervals."""
_DELETED: Final = "that was deleted in"


def deleted_topics(ledger: Ledger, way: Way, expectations: Expectations, now_ms: int) -> dict[int, Witness]:
    """Return by number the topics that counted and that the cluster does not have, with a witness for later hours.

    A topic that was reported a moment ago may be newer than the list of topics.
    """
    if way.live is None or way.cluster not in expectations.described:
        return {}
    found = {}
    for topic in way.live.topics - way.partitions.keys():
        name = ledger.topics.names[topic]
        reported_ms = _reported_ms(way.live, topic)
        listed_ms = expectations.deleted.get((way.cluster, name))
        if listed_ms is None and reported_ms > now_ms - 2 * REPORTED_WITHIN_MS:
            continue
        known_ms = max(reported_ms, NEVER_MS if listed_ms is None else listed_ms)
        found[topic] = Witness(
            name=f"topic {name} in {way.cluster}",
            reason=f"it was deleted after {iso_time(known_ms)}, or the audit may not see it any more (ACLs); its last "
            "records may not have been counted",
            cluster=way.cluster,
            topic=name,
            since_ms=known_ms - REPORTED_WITHIN_MS,
        )
    return found


def _reported_ms(live: Series, topic: int) -> int:
    """Return the time of the newest report of a topic by a broker."""
    bits = PARTITION_BITS + LIFE_BITS
    low, high = np.searchsorted(live.positions.keys, [topic << bits, (topic + 1) << bits])
    return int(live.positions.progress["seen_ms"][low:high].max(initial=NEVER_MS))


def deletion_note(witness: Witness) -> str:
    """Return what the verdict on an hour says that was closed before."""
    return f"{witness.name} {witness.reason.split(',')[0].removeprefix('it ')}; the hour was closed before"


def name_of_deleted(topic: str, cluster: str) -> str:
    """Return the name of the witness for a topic whose name was given to another one."""
    return f"topic {topic} {_DELETED} {cluster}"


def kept(before: TopicHour | None, now: TopicHour) -> TopicHour:
    """Return the verdict on an hour after another one: the one before if only the deletion came (invariant C)."""
    if before is None or now.status is not Status.UNKNOWN or before.status in (Status.PENDING, Status.UNKNOWN):
        return now
    names = [witness.name for witness in now.missing]
    is_deletion_alone = bool(names) and all(_DELETED in name for name in names)
    is_new = any(finding not in before.findings for finding in now.findings)  # of another cluster with this topic
    if not is_deletion_alone or is_new or _without_replicas(before) != _without_replicas(now):
        return now
    notes = (f"{name}: later; the hour was closed before" for name in names)
    return replace(before, rests_on=tuple(dict.fromkeys((*before.rests_on, *notes))))


def _without_replicas(verdict: TopicHour) -> dict[object, object]:
    return {stage: sums for stage, sums in verdict.sums.items() if stage.tier not in ("replica", "mirrored")}
