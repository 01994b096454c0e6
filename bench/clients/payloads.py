"""Values of all clients: pieces of log-like text, without line ends, so that kcat takes a line for a record."""

from bench.broker.confluent import TEXT_BYTES
from bench.broker.confluent import payloads as texts

SEPARATORS = bytes.maketrans(b"\n", b" ")


def values_of(record_bytes: int) -> list[bytes]:
    """Different ones, as many as one MiB of text holds."""
    given = texts(record_bytes)
    return [next(given).translate(SEPARATORS) for _ in range(TEXT_BYTES // record_bytes)]
