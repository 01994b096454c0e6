"""Door to the logs that narrowing asks: what a caller plugs in, and what it answers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.audit.narrowing.records import Batch
from pipeline.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentRange:
    """Batches that differ between source and replica. `detail` says why one cannot be read; None if both can."""

    offsets: OffsetSpan
    source_records: int
    replica_records: int
    detail: str | None = None
    is_recorded_gap: bool = False


@dataclass(slots=True, kw_only=True)
class RangeComparison:
    """Result of a comparison of two copies. `compared` are the offsets that were compared; None if none were.

    `more`: differences beyond those listed. `uncompared` are offsets with the reason why they were not compared.
    """

    compared: OffsetSpan | None = None
    different: list[DifferentRange] = field(default_factory=list)
    more: int = 0
    uncompared: list[tuple[OffsetSpan, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSpan:
    """Batches of a span of offsets, up to before `up_to`. `reason` says why not all came; None if all did."""

    batches: Sequence[Batch]
    up_to: int
    reason: str | None = None


class LogAccess(Protocol):
    """The logs of all clusters. No method raises PipelineError: what fails is said in the answer."""

    async def compare(
        self, cluster: str, source: TopicPartition, replica: TopicPartition, span: OffsetSpan | None, timeout_s: float
    ) -> RangeComparison:
        """Compare source and replica within a span, or within all that both have."""

    async def fetch(
        self, cluster: str, partition: TopicPartition, span: OffsetSpan, *, max_bytes: int, timeout_s: float
    ) -> FetchedSpan:
        """Fetch the batches that have offsets of a span: at least one, and at most about `max_bytes`."""


class TableAccess(Protocol):
    """The tables of loads."""

    async def offsets(
        self, root: str, topic: str, partition: int, span: OffsetSpan, timeout_s: float
    ) -> "LoadedOffsets | str":
        """Return which offsets of a span the files hold, or why that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedOffsets:
    """Offsets in the files of a table, in order. `loaded_to`: where the next load begins; `skipped`: what it passed.

    `aborted`: spans in which some of the records belong to aborted transactions, which loads leave out.
    """

    offsets: Sequence[int]
    loaded_to: int
    skipped: Sequence[OffsetSpan] = ()
    aborted: Sequence[OffsetSpan] = ()
    damaged: Sequence[str] = ()
    """Files that are gone or changed, each with the reason."""
