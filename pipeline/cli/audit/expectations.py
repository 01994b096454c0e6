"""Expectations of the audit: reads the mirror's table and its gaps from the hub."""

from typing import TYPE_CHECKING

from pipeline.cli.terminal.connect import wall_clock

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pipeline.audit.reconcile import Route as ReplicaRoute
    from pipeline.audit.server import ReadRoutes
    from pipeline.client.cluster.cluster import Cluster


def mirror_routes(replica: "Cluster | None", metrics: "CollectorRegistry") -> "ReadRoutes":
    """Return a reader of the mirror's partition table and gaps; both are empty until a topic is mirrored."""
    from random import Random

    from pipeline.audit.reconcile import Route
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.gap_journal import GapJournal
    from pipeline.mirror.journals.gaps import GAPS_TOPIC
    from pipeline.mirror.journals.table import TABLE_TOPIC
    from pipeline.mirror.journals.table_journal import TableJournal
    from pipeline.mirror.metrics import table_records_skipped

    if replica is None:
        return _no_routes
    journal = TableJournal(replica, table_records_skipped(metrics).inc)
    gaps = GapJournal(replica, clock=wall_clock, rng=Random())

    async def read_routes() -> list[Route]:
        topics = await list_topics(replica)
        if TABLE_TOPIC in topics:
            await journal.read_on()
        if GAPS_TOPIC in topics:
            await gaps.read_on()
        deleted = gaps.ledger.deleted_offsets()
        return [
            Route(
                cluster=line.source.cluster,
                source=line.source.partition,
                replica=line.replica,
                deleted_offsets=deleted.get((line.source.cluster, line.replica), 0),
            )
            for line in journal.table.newest_assignments()  # live brokers report the newest topic of a name, too
        ]

    return read_routes


async def _no_routes() -> list["ReplicaRoute"]:
    return []
