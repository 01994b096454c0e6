"""Times for people. Pure."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(time_ms: int) -> str:
    """Return ISO 8601 in UTC, or milliseconds for a year that ISO 8601 cannot express: producers may send any time."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return f"{time_ms} ms"


def duration(length_ms: int) -> str:
    """Return a length of time in its largest whole unit: `24 h`, `7 min`, `30 s`."""
    seconds = round(abs(length_ms) / 1000)
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size or seconds == size:
            return f"{round(seconds / size)} {unit}"
    return f"{seconds} s"
