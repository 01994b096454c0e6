"""Letters of statuses, and the verdict on many hours. Pure."""

from collections.abc import Iterable
from typing import Final

from pipeline.audit.judgement.judge import LETTERS
from pipeline.audit.judgement.verdicts import Status

NOTHING_COUNTED: Final = " "
SEVERITY: Final = {status: rank for rank, status in enumerate(Status)}
STATUS_OF: Final = {letter: status for status, letter in LETTERS.items()}


def common_verdict(statuses: Iterable[Status]) -> str:
    """Return the verdict on hours of these statuses: `exact`, `difference` or `unknown`; no hours are `unknown`."""
    found = set(statuses)
    if any(status.is_difference for status in found):
        return "difference"
    return "exact" if found == {Status.EXACT} else "unknown"


__all__ = ["LETTERS", "NOTHING_COUNTED", "SEVERITY", "STATUS_OF", "common_verdict"]
