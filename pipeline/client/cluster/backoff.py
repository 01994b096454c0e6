"""How long to wait before the next try. Pure."""


def backoff_ms(failures: int, first_ms: int, max_ms: int) -> int:
    """Doubles with each failure in a row, from `first_ms` at the first, never above `max_ms` (KIP-580)."""
    return min(max_ms, first_ms << min(max(failures - 1, 0), 32))
