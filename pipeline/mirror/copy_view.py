"""The state of a partition as users see it: state, lag, and what to do."""

from dataclasses import dataclass, replace

from pipeline.mirror.copying.copies import Advice, CopyState, PartitionCopy, SourceCopies
from pipeline.mirror.copying.progress import Lag

SEVERITIES = (
    CopyState.HALTED,
    CopyState.REJECTED,
    CopyState.UNOWNED,
    CopyState.WAITING,
    CopyState.SILENT,
    CopyState.GONE,
    CopyState.PAUSED,
    CopyState.LOCATING,
    CopyState.COPYING,
    CopyState.CAUGHT_UP,
    CopyState.ELSEWHERE,
)
"""States, the worst first."""
WELL = frozenset({CopyState.COPYING, CopyState.CAUGHT_UP, CopyState.PAUSED, CopyState.ELSEWHERE})


@dataclass(frozen=True, slots=True)
class CopyView:
    """Present state of one partition."""

    copy: PartitionCopy
    state: CopyState
    lag: Lag
    error: str | None
    advice: Advice | None

    @property
    def is_troubled(self) -> bool:
        """True if the partition is not copied, or its lag is unknown."""
        return self.state not in WELL or self.has_unknown_lag

    @property
    def has_unknown_lag(self) -> bool:
        """True if this process should know the lag, and does not."""
        return self.lag.offsets is None and self.state is not CopyState.ELSEWHERE


def view_of(copies: SourceCopies, copy: PartitionCopy, *, now: float, now_ms: int, bound_s: float) -> CopyView:
    """Return the state of a copy at the time `now` of trio's clock, which is `now_ms` in ms since 1970.

    An answer of the source that is older than `bound_s` is outdated.
    """
    view = _view_unless_paused(copies, copy, now, now_ms, bound_s)
    if copy.pause is None or copy.is_rejected:
        return view
    return replace(view, state=CopyState.PAUSED, advice=Advice.RESUME)


def _view_unless_paused(copies: SourceCopies, copy: PartitionCopy, now: float, now_ms: int, bound_s: float) -> CopyView:
    progress = copy.progress
    is_certain = copy.position is not None
    lag = progress.lag(now=now, now_ms=now_ms, bound_s=bound_s, is_certain=is_certain)
    if copy.is_rejected:
        lag = Lag()
    if copy.trouble is not None:
        return CopyView(copy, copy.trouble.state, lag, copy.trouble.reason, copy.trouble.advice)
    if not copies.has(copy.source):
        if copies.holder_of(copy.source) is not None:
            return CopyView(copy, CopyState.ELSEWHERE, Lag(), None, None)
        reason = "no live member of the group that has the same sources and flows copies it"
        return CopyView(copy, CopyState.UNOWNED, Lag(), reason, Advice.LOOK_AT_GROUP)
    if copy.is_rejected or copy.position is None or progress.answered_at is None:
        return CopyView(copy, CopyState.LOCATING, lag, None, None)
    if not progress.is_fresh(now, bound_s):
        error = f"the source has not answered for {now - progress.answered_at:.0f} s"
        return CopyView(copy, CopyState.SILENT, lag, error, Advice.LOOK_AT_SOURCE)
    if lag.offsets is None:
        error = f"the source's high watermark, {progress.high_watermark}, is before the end of the replica"
        return CopyView(copy, CopyState.WAITING, lag, error, Advice.LOOK_FOR_LOSS)
    return CopyView(copy, CopyState.COPYING if lag.offsets else CopyState.CAUGHT_UP, lag, None, None)
