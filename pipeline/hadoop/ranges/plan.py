"""Plans the offsets that a load reads, and splits them into tasks. Pure.

The plan is fixed before the first byte is read: from where the last manifest ends to the high watermark of that moment,
or to the last stable offset (`isolation.level=read_committed`), so that no transaction of the range is still open.
Offsets that the topic no longer holds, or that lie beyond its end although a manifest lists them, are lost and named in
an error. Deleted ones are skipped only with `fail.on.data.loss=false`, and the manifest then records them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.manifest import OffsetRange


class DataLossError(PipelineError):
    """The topic does not hold offsets that the load has to read next. `missing` is the range of these offsets."""

    def __init__(self, topic: str, missing: OffsetRange, reason: str) -> None:
        super().__init__(f"{topic} {missing}: {reason}")
        self.topic = topic
        self.missing = missing
        self.reason = reason


class BadBatch(Enum):
    """Treatment of a batch that cannot be opened."""

    FAIL = "fail"
    """Fail the task by name."""
    ROW = "row"
    """Yield a row with the bytes of the batch and the reason."""
    SKIP = "skip"
    """Continue after it, with a warning in the log of the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """Offsets of a partition: `log_start_offset` up to, not including, `high_watermark`.

    `end` is where a reader of committed records stops: the last stable offset, behind which a transaction is open.
    """

    log_start_offset: int
    high_watermark: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Ranges to read, one per partition with new records, and ranges before them that are skipped as lost.

    A partition may have a skipped range alone: all of its rest was deleted.
    """

    ranges: tuple[OffsetRange, ...]
    skipped: tuple[OffsetRange, ...]


def plan_load(
    topic: str,
    committed: Mapping[int, int],
    bounds: Mapping[int, PartitionBounds],
    *,
    first_start: Mapping[int, int] | None = None,
    fail_on_data_loss: bool = True,
    replaced: Mapping[int, OffsetRange] | None = None,
) -> LoadPlan:
    """Plan one load.

    committed: next offset by partition, from the last manifest.
    first_start: first offset of partitions that no manifest contains; by default their log start offset.
    replaced: by partition the loaded offsets at which a truncated source has other records now, which are skipped.
    Raises DataLossError for missing offsets. A topic that ends before the committed offsets raises in any case, since
    other records may take these offsets now.
    """
    for partition, offset in sorted(committed.items()):
        if partition not in bounds:
            missing = OffsetRange(partition=partition, start=offset, end=offset)
            raise DataLossError(topic, missing, "the partition is gone")
    ranges, skipped = [], []
    for partition, bound in sorted(bounds.items()):
        known = committed.get(partition)
        start = (first_start or {}).get(partition, bound.log_start_offset) if known is None else known
        if start > bound.high_watermark:
            raise DataLossError(
                topic,
                OffsetRange(partition=partition, start=bound.high_watermark, end=start),
                "these offsets are loaded already, but the topic ends before them: it was deleted and created again, "
                "or its brokers lost data. Load it below another root",
            )
        if replaced is not None and partition in replaced:
            skipped.append(replaced[partition])
        if start < bound.log_start_offset:
            missing = OffsetRange(partition=partition, start=start, end=bound.log_start_offset)
            if fail_on_data_loss:
                reason = "these offsets were deleted before they were loaded (fail.on.data.loss=false goes on)"
                raise DataLossError(topic, missing, reason)
            skipped.append(missing)
            start = bound.log_start_offset
        if start < bound.end:
            ranges.append(OffsetRange(partition=partition, start=start, end=bound.end))
    return LoadPlan(ranges=tuple(ranges), skipped=tuple(skipped))


def split_ranges(ranges: Sequence[OffsetRange], max_offsets_per_task: int) -> tuple[OffsetRange, ...]:
    """Split ranges into tasks of at most `max_offsets_per_task` offsets, of nearly equal size within a range."""
    tasks = []
    for loaded in ranges:
        size = loaded.end - loaded.start
        parts = max(1, -(-size // max_offsets_per_task))
        for part in range(parts):
            start = loaded.start + size * part // parts
            end = loaded.start + size * (part + 1) // parts
            tasks.append(OffsetRange(partition=loaded.partition, start=start, end=end))
    return tuple(tasks)
