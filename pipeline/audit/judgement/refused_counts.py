"""Topics of which counts did not fit the bounds of the ledger: what no verdict can rest on. Pure."""

from collections.abc import Mapping

from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import Witness
from pipeline.audit.judgement.ways import Way
from pipeline.audit.ledger.ledger import Ledger


def refused_counts(ledger: Ledger, way: Way) -> dict[int, tuple[Witness]]:
    """Return by number the topics that lack counts, or whose replicas do, with the witness for hours since then."""
    found = {}
    for topic, since_ms in with_replicas(ledger.refused_ms, way.replica_topics).items():
        name = ledger.topics.names[topic]
        witness = Witness(
            name=f"counts of {name}",
            reason=f"the audit had no room for all of them from {iso_time(since_ms)} on: too many counters or "
            "producers, hours that lie ahead, or lost records; its metric audit_rows_refused_total counts them",
            topic=name,
            since_ms=since_ms,
        )
        found[topic] = (witness,)
    return found


def with_replicas(times_ms: Mapping[int, int], replica_topics: Mapping[int, frozenset[int]]) -> Mapping[int, int]:
    """Return the time of each topic: the earliest one of the topic and its replicas."""
    if not times_ms:
        return times_ms
    found = dict(times_ms)
    for topic, replicas in replica_topics.items():
        mine = [times_ms[each] for each in (topic, *replicas) if each in times_ms]
        if mine:
            found[topic] = min(mine)
    return found
