"""Times for people. Pure."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(time_ms: int) -> str:
    """Return ISO 8601 in UTC, or milliseconds for a year that ISO 8601 cannot express: producers may send any time."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return f"{time_ms} ms"
