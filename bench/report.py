"""What every benchmark gives and how it is shown: rows with a ratio ours / peer, targets, a table or JSON.

Invariant: a row with an `error` was not measured, or what was measured is wrong: it counts as missed.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

Show = Callable[[str], None]
"""Takes what is being done now."""


LEAST_PUBLISHED_SCALE = 0.1
"""Smaller runs are too short to be told to others; the page names the size of those that are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound for the ratio, or with `absolute` for our own figure."""

    bound: float
    at_least: bool
    absolute: bool = False

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}{' (ours)' if self.absolute else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison. Without `peer` there is only our own figure.

    `ratio_of_rounds`: median of the ratios within rounds, where each round measured both one after the other.
    """

    name: str
    unit: str
    ours: float | None = None
    peer: str = ""
    theirs: float | None = None
    ratio_of_rounds: float | None = None
    target: Target | None = None
    error: str = ""

    @property
    def ratio(self) -> float | None:
        if self.ratio_of_rounds is not None:
            return self.ratio_of_rounds
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def is_met(self) -> bool:
        """True where there is no target and nothing failed."""
        if self.error:
            return False
        if self.target is None:
            return True
        value = self.ours if self.target.absolute else self.ratio
        if value is None:
            return False
        return value >= self.target.bound if self.target.at_least else value <= self.target.bound

    @property
    def verdict(self) -> str:
        """What the last column says."""
        if self.error:
            return f"failed: {self.error}"
        if self.target is None:
            return ""
        return "ok" if self.is_met else "MISSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much to measure. `rows` is a regular expression that a row's name must hold; `rounds` 0: as many as fit."""

    rows: str = ""
    rounds: int = 0
    scale: float = 1.0
    quick: bool = False
    alone: bool = False
    """Without the peer, where that makes sense."""

    @property
    def is_full(self) -> bool:
        """Whether the figures are those to publish."""
        return not self.rows and not self.quick and not self.alone and self.scale >= LEAST_PUBLISHED_SCALE

    def selects(self, name: str) -> bool:
        return re.search(self.rows, name) is not None

    def rounds_or(self, usual: int) -> int:
        if self.rounds:
            return self.rounds
        return 1 if self.quick else usual

    def scaled(self, count: int, *, least: int = 1) -> int:
        return max(least, int(count * self.scale * (0.1 if self.quick else 1)))


def median_or_none(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def show_on_terminal(doing: str) -> None:
    """One line that is written over, and nothing where nobody looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{doing[:110]}")
        sys.stderr.flush()


def figure(value: float | None) -> str:
    """Three digits that say something."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


HEADINGS = ("row", "unit", "ours", "peer", "", "ratio", "target", "")


def cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    target = "" if row.target is None else str(row.target)
    theirs = figure(row.theirs) if row.peer else ""
    return row.name, row.unit, figure(row.ours), row.peer, theirs, ratio if row.peer else "", target, row.verdict


RIGHT_ALIGNED = (False, False, True, False, True, True, False, False)


def table(rows: Iterable[Row]) -> str:
    """For people, as wide as it needs to be."""
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS) - 1)]
    text = []
    for line in lines:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, RIGHT_ALIGNED, strict=False)
        ]
        text.append("  ".join([*padded, line[-1]]).rstrip())
    return "\n".join(text)


def markdown(rows: Iterable[Row]) -> str:
    """The table for a page."""
    lines = ["| row | unit | ours | peer | | ratio | target | |", "|---|---|--:|---|--:|--:|---|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def as_json(name: str, rows: Iterable[Row]) -> str:
    """One line: everything in the table, unrounded."""
    listed = [
        {
            "row": row.name,
            "unit": row.unit,
            "ours": row.ours,
            "peer": row.peer or None,
            "theirs": row.theirs,
            "ratio": row.ratio,
            "target": None if row.target is None else str(row.target),
            "met": row.is_met,
            "error": row.error or None,
        }
        for row in rows
    ]
    return json.dumps({"benchmark": name, "rows": listed})
