"""Reads the audit's expectations: asks all clusters at the same time, each with a deadline, and keeps what they said.

Invariant: a cluster that is away delays no other one, and changes nothing but its witness.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import trio

from pipeline.audit.expectations.building import (
    ClusterFacts,
    KnownCluster,
    KnownMirrors,
    MirrorFacts,
    SelectedReplicas,
    expectations_of,
)
from pipeline.audit.judgement.verdicts import Expectations
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.net.nurseries import unwrapped_errors

READ_TIMEOUT_S: Final = 10.0
"""Time for one cluster, or the mirrors' journals."""
PARTITIONS_PER_S: Final = 2_000
"""For so many partitions more, all is read a second later: 1,000 topics of 100 partitions each minute."""

Answer = TypeVar("Answer")
ReadCluster = Callable[[], Awaitable[ClusterFacts]]
ReadMirrors = Callable[[], Awaitable[MirrorFacts]]
Select = Callable[[str, Collection[str]], Awaitable[SelectedReplicas]]
"""Returns the replicas of a cluster's topics; the topics that it did not come to are `unknown`."""

logger = get_logger(__name__)


class ExpectationsReader:
    """Reads what is expected. `read` may be called at any time; what was read `max_age_s` ago is not read again."""

    def __init__(
        self,
        live: Mapping[str, ReadCluster],
        replica: tuple[str, ReadCluster] | None,
        read_mirrors: ReadMirrors | None,
        select: Select | None,
        *,
        clock: Clock,
        max_age_s: float,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._live = dict(live)
        self._replica = replica
        self._read_mirrors = read_mirrors
        self._select = select
        self._clock = clock
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._known = {name: KnownCluster() for name in (*live, *(() if replica is None else (replica[0],)))}
        self._mirrors = KnownMirrors()
        self._read_at = float("-inf")
        self._expected: Expectations | None = None
        """Of what is known: made once for each reading, as whoever gets the same object compares it at no cost."""
        self._turn = trio.Lock()

    async def read(self) -> Expectations:
        """Return what is expected, with witnesses for what could not be read. Raises nothing but a cancellation."""
        async with self._turn:
            if trio.current_time() - self._read_at >= self.age_s:
                await self._read_all()
                self._read_at = trio.current_time()
                self._expected = None
            if self._expected is None:
                replica = None if self._replica is None else self._replica[0]
                self._expected = expectations_of(tuple(self._live), replica, self._known, self._mirrors)
            return self._expected

    @property
    def age_s(self) -> float:
        """Age at which clusters are asked again: their answers about very many partitions take long to read."""
        counts = (known.facts.partitions.values() for known in self._known.values() if known.facts is not None)
        return self._max_age_s + sum(map(sum, counts)) / PARTITIONS_PER_S

    async def _read_all(self) -> None:
        clusters = [*self._live.items(), *(() if self._replica is None else (self._replica,))]
        async with trio.open_nursery() as nursery:
            for name, read in clusters:
                nursery.start_soon(self._read_cluster, name, read)
            if self._read_mirrors is not None:
                nursery.start_soon(self._read_journals, self._read_mirrors)
        if self._select is not None and self._mirrors.facts is not None:
            for name in self._live:
                await self._apply_selection(name, self._select)

    async def _read_cluster(self, name: str, read: ReadCluster) -> None:
        began_ms = self._clock()  # topics that are created while the cluster answers belong to the next answer
        facts, error = await _within(self._timeout_s, read)
        before = self._known[name]
        if facts is None:
            self._known[name] = replace(before, error=error)
        else:
            self._known[name] = before.answered(facts, began_ms)
        if error != before.error and error is not None:
            logger.warning("expectations_not_read", cluster=name, error=error)

    async def _read_journals(self, read: ReadMirrors) -> None:
        began_ms = self._clock()
        facts, error = await _within(self._timeout_s, read)
        before = self._mirrors
        if facts is None:
            self._mirrors = replace(before, error=error)
        else:
            self._mirrors = replace(before, facts=facts, read_ms=began_ms, error=None)
        if error != before.error and error is not None:
            logger.warning("mirrors_not_read", error=error)

    async def _apply_selection(self, name: str, select: Select) -> None:
        known = self._known[name].facts
        if known is None:
            return
        selected = await select(name, known.partitions.keys())
        self._mirrors = replace(self._mirrors, selected={**self._mirrors.selected, name: selected})


async def _within(timeout_s: float, ask: Callable[[], Awaitable[Answer]]) -> tuple[Answer | None, str | None]:
    """Return the answer, or why there is none."""
    with trio.move_on_after(timeout_s):
        try:
            with unwrapped_errors():
                return await ask(), None
        except PipelineError as error:
            return None, str(error)
    return None, f"no answer within {timeout_s:g} s"
