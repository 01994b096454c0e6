"""Times on the command line: ISO 8601, in UTC unless the text names an offset, or ms since 1970. Pure."""

import re
from datetime import UTC, datetime, timedelta

from pipeline.errors import ConfigurationError

MAX_MS = 2**62
TIME_HELP = "2026-11-01T00:00 (UTC unless it names an offset, as +01:00), or ms since 1970"
"""How to write a time, for the help of options."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AMBIGUOUS = {8: "a day", 10: "seconds since 1970"}
"""Numbers of so many digits are no ms that anybody means: they would be hours or days after the start of 1970."""


def read_time_ms(option: str, text: str) -> int:
    """Return a time in ms since 1970. Raises ConfigurationError."""
    if re.fullmatch("[0-9]{1,19}", text) and int(text) <= MAX_MS:
        if len(text) in _AMBIGUOUS:
            raise ConfigurationError(
                option, f"{text} looks like {_AMBIGUOUS[len(text)]}: give {TIME_HELP}, which have 13 digits today"
            )
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(option, f"{text[:40]!r} is not a time: give {TIME_HELP}") from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    if since < timedelta(0):
        raise ConfigurationError(option, f"{text[:40]} is before 1970")
    return -(since // timedelta(milliseconds=-1))  # rounded up: no record before the time is meant
