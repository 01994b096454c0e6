"""Real log lines as payloads: the 10,000 lines of the demo's access log, without end."""

from collections.abc import Iterator

from pipeline.cli.demo.access_log import sample_lines

LOG_LINES = "log lines"


def log_lines() -> Iterator[bytes]:
    """Without end, each pass one line further on.

    So a partition that gets every n-th line has other lines in each pass, and no batch holds a line twice, which would
    make a codec look better than it is.
    """
    lines = [line.encode() for line in sample_lines()]
    first = 0
    while True:
        yield from lines[first:]
        yield from lines[:first]
        first = (first + 1) % len(lines)


def log_bytes(records: int) -> int:
    """The payload of the first `records` lines."""
    sizes = [len(line.encode()) for line in sample_lines()]
    passes, rest = divmod(records, len(sizes))
    first = passes % len(sizes)
    return passes * sum(sizes) + sum([*sizes[first:], *sizes[:first]][:rest])
