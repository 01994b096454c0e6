"""Parameters of questions over HTTP: read, bounded, refused with a sentence. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.reports.letters import LETTERS
from pipeline.errors import PipelineError

MAX_TIME_MS: Final = 2**62
MAX_NAMES: Final = 1_000
"""Topics in one question."""
MAX_REPORT_HOURS: Final = 100_000
DEFAULT_REPORT_HOURS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Values = Mapping[str, Sequence[str]]
"""Values of a query by name."""


class QuestionError(PipelineError):
    """A parameter is wrong. The message names it, and says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursQuestion:
    """Question about hours. `topics` is empty for all topics, `statuses` for all statuses."""

    topics: frozenset[str] = frozenset()
    from_ms: int | None = None
    to_ms: int | None = None
    statuses: frozenset[Status] = frozenset()
    limit: int = DEFAULT_REPORT_HOURS
    offset: int = 0

    @classmethod
    def read(cls, values: Values, *, max_limit: int = MAX_REPORT_HOURS, limit: int = DEFAULT_REPORT_HOURS) -> Self:
        """Return the question of a query. Raises QuestionError."""
        topics = frozenset(values.get("topic", ()))
        if len(topics) > MAX_NAMES:
            raise QuestionError(f"topic: at most {MAX_NAMES} topics may be named")
        from_ms, to_ms = read_instant(values, "from"), read_instant(values, "to")
        if from_ms is not None and to_ms is not None and from_ms >= to_ms:
            raise QuestionError("from: must be before `to`")
        return cls(
            topics=topics,
            from_ms=from_ms,
            to_ms=to_ms,
            statuses=frozenset(map(read_status, values.get("status", ()))),
            limit=read_number(values, "limit", 1, max_limit, limit),
            offset=read_number(values, "offset", 0, 10**9, 0),
        )


def read_status(text: str) -> Status:
    """Return a status of its name or letter. Raises QuestionError."""
    by_letter = {letter: status for status, letter in LETTERS.items()}
    if text in by_letter:
        return by_letter[text]
    try:
        return Status(text)
    except ValueError:
        raise QuestionError(f"status: {_shown(text)} is not one of {', '.join(Status)}") from None


def read_number(values: Values, name: str, lowest: int, highest: int, default: int) -> int:
    """Return a number of a query. Raises QuestionError."""
    text = only_value(values, name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,10}", text) or not lowest <= int(text) <= highest:
        raise QuestionError(f"{name}: {_shown(text)} is not a number from {lowest} to {highest}")
    return int(text)


def read_flag(values: Values, name: str) -> bool:
    """Return whether a parameter is `true`. Raises QuestionError for other values than true and false."""
    text = only_value(values, name)
    if text not in (None, "true", "false"):
        raise QuestionError(f"{name}: {_shown(text)} is not true or false")
    return text == "true"


def read_instant(values: Values, name: str) -> int | None:
    """Return a time of a query in ms since 1970. Raises QuestionError."""
    text = only_value(values, name)
    return None if text is None else instant_ms(text, name)


def instant_ms(text: str, name: str) -> int:
    """Return a time, ISO 8601 or ms, in ms since 1970, rounded up. Raises QuestionError."""
    if re.fullmatch("-?[0-9]{1,19}", text) and abs(int(text)) <= MAX_TIME_MS:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        raise QuestionError(
            f"{name}: {_shown(text)} is not a time: give 2026-11-01T00:00 (UTC), or ms since 1970"
        ) from None
    return -(since // timedelta(milliseconds=-1))


def only_value(values: Values, name: str) -> str | None:
    """Return the value of a parameter that may stand once; None without it. Raises QuestionError."""
    given = values.get(name, ())
    if len(given) > 1:
        raise QuestionError(f"{name}: may be given once")
    return given[0] if given else None


def _shown(text: str | None) -> str:
    return repr((text or "")[:40])
