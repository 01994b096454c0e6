"""The audit's API over real ledger, judge and documents; counts are applied as a collector applies them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.api import AuditApi, Narrow
from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.judging import Judgements
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.verdicts import Expectations, Finding
from pipeline.audit.metrics import AuditMetrics
from pipeline.net.http.server import http_application
from tests.support.audited_way import EXPECTED, GRACE_MS, NOW_MS, PENDING_MAX_MS

LIVE, HUB = "east", "hub"


async def kept_as_it_is(finding: Finding, _siblings: Sequence[Finding]) -> Sequence[Finding]:
    """Find out nothing more."""
    return [finding]


@dataclass(eq=False)
class AuditSite:
    """The parts of an audit service whose clusters were read to `now_ms`."""

    narrow: Narrow = field(default=kept_as_it_is)
    now_ms: int = NOW_MS
    expected: Expectations = EXPECTED
    readings: int = 0
    failure: Exception | None = None

    def __post_init__(self) -> None:
        no_cluster: Any = None
        self.collector = EventCollector({LIVE: no_cluster, HUB: no_cluster}, 1.0, self.clock)
        self.judgements = Judgements(
            self.collector,
            self.read_expectations,
            Expectations(live_clusters=[LIVE], replica_cluster=HUB),
            clock=self.clock,
            grace_ms=GRACE_MS,
            pending_max_ms=PENDING_MAX_MS,
        )
        self.api = AuditApi(
            self.collector,
            self.judgements,
            self.narrow,
            live_clusters=[LIVE],
            replica_cluster=HUB,
            grace_ms=GRACE_MS,
            clock=self.clock,
        )
        self.application = http_application(self.api.routes())
        self.metrics = AuditMetrics(self.collector, self.judgements, HUB, self.clock)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def clock(self) -> int:
        return self.now_ms

    async def read_expectations(self) -> Expectations:
        self.readings += 1
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return self.expected

    def apply(self, reports: Sequence[CountReport]) -> None:
        for each in reports:
            self.collector.ledger.apply(each)

    def read_all(self) -> None:
        for state in self.collector.states.values():
            state.ends_at(state.position, self.now_ms)

    def expect(self, **changes: Any) -> None:
        self.expected = replace(self.expected, **changes)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[httpx.AsyncClient]:
        """Give a client of the API, while expectations are read."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.judgements.run)
            transport = httpx.ASGITransport(app=self.application)
            async with httpx.AsyncClient(transport=transport, base_url="http://audit") as client:
                yield client
            nursery.cancel_scope.cancel()


async def document(client: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    """Return a document that is there."""
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()
