"""Pauses between retries. Pure."""


def backoff_ms(failures: int, first_ms: int, max_ms: int) -> int:
    """Return a pause that doubles with each failure in a row, from `first_ms` up to `max_ms` (KIP-580)."""
    return min(max_ms, first_ms << min(max(failures - 1, 0), 32))
