"""Neighbouring hours that are compared together, since records counted one by one cross their edges. Pure."""

import numpy as np

from pipeline.audit.judgement.cells import rows_of
from pipeline.audit.judgement.ways import Way
from pipeline.records.tally import HOUR_MS


def joined_difference(way: Way, hour_ms: int, cell: int) -> tuple[int, int]:
    """Return the difference of all hours around this one that differ, without a gap between them; and the last one."""
    total, last_ms = unmarked_difference(way, hour_ms, cell), hour_ms
    for step in (-HOUR_MS, HOUR_MS):
        other_ms = hour_ms + step
        while (difference := unmarked_difference(way, other_ms, cell)) != 0:
            total += difference
            last_ms = max(last_ms, other_ms)
            other_ms += step
    return total, last_ms


def unmarked_difference(way: Way, hour_ms: int, cell: int) -> int:
    """Return how many records without a mark the producers of a partition counted more than the brokers."""
    cells = np.array([cell], np.int64)
    produced, live = rows_of(way.produced, hour_ms, cells)[0], rows_of(way.live, hour_ms, cells)[0]
    if not produced["by_record"] and live["records"] > 0 and produced["records"] == 0:
        return 0  # records of other producers
    before = int(produced["records"]) - int(produced["marked_records"])
    return before - (int(live["records"]) - int(live["marked_records"]))
