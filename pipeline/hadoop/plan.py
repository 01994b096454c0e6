"""Which offsets a load reads, and how they are cut into tasks. Pure.

The plan is fixed before the first byte is read: from where the last manifest ends to the high watermark of that moment.
Offsets that the topic no longer holds, or does not hold yet though a manifest says so, are loss and said by name; they
are passed over only where the user said so, and then the manifest records them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import PipelineError
from pipeline.hadoop.manifest import OffsetRange


class DataLossError(PipelineError):
    """The topic does not hold what the load has to read next. `missing` is the range that cannot be read."""

    def __init__(self, topic: str, missing: OffsetRange, reason: str) -> None:
        super().__init__(f"{topic} {missing}: {reason}")
        self.topic = topic
        self.missing = missing
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """What a partition holds: `log_start_offset` up to, not including, `high_watermark`."""

    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Ranges to read, one per partition with anything new, and ranges given up as lost."""

    ranges: tuple[OffsetRange, ...]
    skipped: tuple[OffsetRange, ...]


def plan_load(
    topic: str,
    committed: Mapping[int, int],
    bounds: Mapping[int, PartitionBounds],
    *,
    first_start: Mapping[int, int] | None = None,
    fail_on_data_loss: bool = True,
) -> LoadPlan:
    """The plan of one load.

    committed: next offset by partition, from the last manifest.
    first_start: where a partition that no manifest knows is begun, if not at its log start offset.
    Raises DataLossError where offsets are missing; a topic that has shrunk raises in any case, for then what
    is at the committed offsets now is not what was loaded.
    """
    for partition, offset in sorted(committed.items()):
        if partition not in bounds:
            raise DataLossError(
                topic, OffsetRange(partition=partition, start=offset, end=offset), "the partition is gone"
            )
    ranges, skipped = [], []
    for partition, bound in sorted(bounds.items()):
        known = committed.get(partition)
        start = (first_start or {}).get(partition, bound.log_start_offset) if known is None else known
        if start > bound.high_watermark:
            raise DataLossError(
                topic,
                OffsetRange(partition=partition, start=bound.high_watermark, end=start),
                "these offsets are loaded already but the topic ends before them: it was deleted and created again, "
                "or its brokers lost data. Load it below another root",
            )
        if start < bound.log_start_offset:
            missing = OffsetRange(partition=partition, start=start, end=bound.log_start_offset)
            if fail_on_data_loss:
                raise DataLossError(
                    topic,
                    missing,
                    "these offsets were deleted before they were loaded (fail.on.data.loss=false goes on)",
                )
            skipped.append(missing)
            start = bound.log_start_offset
        if start < bound.high_watermark:
            ranges.append(OffsetRange(partition=partition, start=start, end=bound.high_watermark))
    return LoadPlan(ranges=tuple(ranges), skipped=tuple(gap for gap in skipped if _is_loaded(gap, ranges)))


def _is_loaded(gap: OffsetRange, ranges: Sequence[OffsetRange]) -> bool:
    return any(loaded.partition == gap.partition for loaded in ranges)


def split_ranges(ranges: Sequence[OffsetRange], max_offsets_per_task: int) -> tuple[OffsetRange, ...]:
    """The ranges cut into tasks of at most so many offsets, of nearly the same size within a range."""
    tasks = []
    for loaded in ranges:
        size = loaded.end - loaded.start
        parts = max(1, -(-size // max_offsets_per_task))
        for part in range(parts):
            start = loaded.start + size * part // parts
            end = loaded.start + size * (part + 1) // parts
            tasks.append(OffsetRange(partition=loaded.partition, start=start, end=end))
    return tuple(tasks)
