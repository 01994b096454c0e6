"""Times on the command line: ISO 8601, UTC unless the text names an offset, or ms since 1970. Pure."""

import re
from datetime import UTC, datetime

from pipeline.errors import ConfigurationError

MAX_MS = 2**62


def read_time_ms(option: str, text: str) -> int:
    """Return a time in ms since 1970. Raises ConfigurationError."""
    if re.fullmatch("[0-9]{1,19}", text) and int(text) <= MAX_MS:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            option, f"{text[:40]!r} is no time: give 2026-11-01T00:00 (UTC), 2026-11-01T00:00+01:00, or ms since 1970"
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
