"""A status page over partitions in any state, without clusters behind them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import open_cluster
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import PartitionCopy, SourceCopies
from pipeline.mirror.copying.throttles import Throttles
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.pauses import Pauses
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.page.status_page import StatusPage
from pipeline.mirror.source_contact import SourceContact
from pipeline.mirror.status import MirrorStatus
from pipeline.mirror.topics.flows import flows_of
from pipeline.model import HostPort, TopicPartition
from pipeline.net.http.server import http_application, serve_http
from tests.support.brokers import clock
from tests.support.mirrors import NOBODY


@dataclass
class ShownSource:
    """A source whose state tests change."""

    copies: SourceCopies
    contact: SourceContact = field(default_factory=SourceContact)

    def groups_status(self) -> None:
        """No groups are copied."""


@dataclass
class ShownMirror:
    """What the page shows; tests change it."""

    status: MirrorStatus
    gaps: GapJournal
    copies: dict[str, SourceCopies]
    contacts: dict[str, SourceContact]
    page: StatusPage
    url: str = ""
    server: trio.CancelScope = field(default_factory=trio.CancelScope)

    def add(self, source: str, topic: str, partition: int = 0) -> PartitionCopy:
        """A partition that is copied, of which nothing is known yet."""
        assignment = Assignment(
            source=SourcePartition(cluster=source, partition=TopicPartition(topic, partition), topic_id=UUID(int=1)),
            replica=TopicPartition(topic, partition),
        )
        self.copies[source].assign(assignment)
        return self.copies[source].states[assignment.source.partition]

    def copied(self, copy: PartitionCopy, *, lag: int = 0, size: int = 100_000) -> None:
        """Have the partition copied with a known lag."""
        now, progress = trio.current_time(), copy.progress
        copy.position = (copy.position or 0) + 1000
        offsets = copy.position - (progress.position or 0)
        progress.note_copied(copy.position, size=size, offsets=offsets, timestamp_ms=clock() - 2000, now=now - 1)
        progress.note_answer(copy.position + lag, now)


@asynccontextmanager
async def serving_page(
    sources: Sequence[str] = ("east", "west"), flows: Sequence[Mapping[str, object]] = ()
) -> AsyncIterator[ShownMirror]:
    """A page of these sources and flows (without flows: one of each source), until the block ends."""
    config = MirrorConfig.from_settings(
        {
            "destination.bootstrap.servers": "given:1",
            "http.listen": "127.0.0.1:0",
            "fetch.max.wait.ms": 60_000,  # so that no lag is outdated while a test looks
            "sources": [{"name": name, "bootstrap.servers": "given:1"} for name in sources],
            **({"flows": list(flows)} if flows else {"topics": [".*"]}),
        }
    )
    metrics = MirrorMetrics(CollectorRegistry())
    declared = flows_of(config)
    current = CurrentConfig(config)
    shown_sources = {
        name: ShownSource(SourceCopies(name, declared[name], metrics, current, Pauses())) for name in sources
    }
    copies = {name: source.copies for name, source in shown_sources.items()}
    contacts = {name: source.contact for name, source in shown_sources.items()}
    status = MirrorStatus(shown_sources, current, Throttles(config), metrics, clock=clock)
    status.flows = lambda: [
        {"name": flow.name, "source": flow.source, "topics": 1, "remarks": [], "remark_count": 0}
        for of_source in declared.values()
        for flow in of_source.flows
    ]
    status.error = None
    for contact in contacts.values():
        contact.set_error(None)
        contact.end(is_answered=True)
    async with open_cluster(NOBODY) as away, trio.open_nursery() as nursery:
        gaps = GapJournal(away, clock=clock, rng=Random(1))
        shown = ShownMirror(status, gaps, copies, contacts, StatusPage(status, gaps, clock=clock))
        application = http_application([*shown.page.routes(), *status.routes()])
        shown.server = nursery.cancel_scope
        shown.url = f"http://{await nursery.start(serve_http, application, HostPort('127.0.0.1', 0))}"
        yield shown
        nursery.cancel_scope.cancel()
