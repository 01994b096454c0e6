"""Plugs tables of loads into narrowing: the offsets that files hold, of roots that the settings allow to read."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from pipeline.audit.counting.load_rows import name_of_root
from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.audit.narrowing.access import LoadedOffsets
from pipeline.errors import PipelineError

MAX_FILES: Final = 100
MAX_BYTES: Final = 512 << 20
"""Bounds of what is read of one table."""


class TableFiles:
    """The tables below some roots. Names of other roots come from events, and are not opened."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = {name_of_root(root): root for root in roots}

    async def offsets(
        self, root: str, topic: str, partition: int, span: OffsetSpan, timeout_s: float
    ) -> LoadedOffsets | str:
        """Return the offsets in the files of a table, or why they are not known. A slow store is left to its thread."""
        known = self._roots.get(root)
        if known is None:
            return f"the audit's settings do not name the root {root}: run pipeline load verify -b for the table"
        with trio.move_on_after(timeout_s):
            try:
                read = partial(_read_offsets, known, topic, partition, span)
                return await trio.to_thread.run_sync(read, abandon_on_cancel=True)
            except PipelineError as error:
                return str(error)
        return "the time for it was spent: run pipeline load verify -b for the table"


def _read_offsets(root: str, topic: str, partition: int, span: OffsetSpan) -> LoadedOffsets | str:
    """Read the files that may hold offsets of the span. Raises PipelineError."""
    from pipeline.hadoop.commit.checkpoints import read_last_manifests
    from pipeline.hadoop.upkeep.quarantined_offsets import QuarantinedOffsets
    from pipeline.hadoop.upkeep.table import DamagedFileError, open_table
    from pipeline.hadoop.upkeep.verification import offsets_in

    table = open_table(root, topic)
    state = table.state()
    if state.last is None:
        return f"the table of {topic} below {root} has no commits"
    files = [
        file
        for file in state.files.values()
        if file.partition == partition and file.first_offset <= span.last and file.last_offset >= span.first
    ]
    if len(files) > MAX_FILES or sum(file.bytes for file in files) > MAX_BYTES:
        return f"{len(files)} files may hold these offsets: run pipeline load verify -b for the table"
    offsets: list[int] = []
    damaged: list[str] = []
    for file in files:
        try:
            if file.quarantined:
                starts, ends = QuarantinedOffsets.of(table, [file]).ranges.get(partition, ((), ()))
                for start, end in zip(starts, ends, strict=True):
                    offsets += range(max(int(start), span.first), min(int(end) - 1, span.last) + 1)
            else:
                found = offsets_in(file, table.read(file))
                offsets += found[(found >= span.first) & (found <= span.last)].tolist()
        except DamagedFileError as error:
            damaged.append(str(error))
    manifests = read_last_manifests(root, topic, state, MAX_FILES)
    return LoadedOffsets(
        offsets=sorted(offsets),
        loaded_to=state.offsets.get(partition, 0),
        skipped=[
            OffsetSpan(first=gap.start, last=gap.end - 1)
            for manifest in manifests
            for gap in manifest.skipped
            if gap.partition == partition
        ],
        aborted=[
            OffsetSpan(first=each.first_offset, last=each.last_offset)
            for manifest in manifests
            for each in manifest.aborted
            if each.partition == partition
        ],
        damaged=damaged,
    )
