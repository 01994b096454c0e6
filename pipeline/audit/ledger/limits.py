"""Bounds of a ledger. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """Bounds of a ledger."""

    series: int = 20_000
    """Counters: four of each cluster, and the groups and loads that are counted."""
    hours: int = 20_000
    """Newest hours that have rows."""
    windows: int = 4
    """Newest windows of a series that have rows of their own."""
    skipped: int = 100_000
    """Skipped ranges of a partition of a load."""
    late: int = 100_000
    """Hours of a series of brokers for which late records are noted."""
    lives: int = 100_000
    """Lives whose signs are kept: those that ended first are forgotten first, then those that are silent longest."""
    rows: int = 400_000
    """Rows of hours in memory, and rows of windows, if there is a shelf for the others."""
    newest: int = 1
    """Hours of a series, and twice as many windows, those reported last, whose rows always stay in memory."""
