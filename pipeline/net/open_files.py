"""How many files and connections the operating system lets this process have open."""

import resource
from pathlib import Path

import structlog

RESERVED_FILES = 500
"""Files beside connections: logs, ZooKeeper, HTTP."""

_DESCRIPTORS = Path("/proc/self/fd")

log = structlog.get_logger()


def raise_open_files_limit(connections: int) -> None:
    """Take all that the hard limit allows, and warn when so many connections do not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, connections + RESERVED_FILES)
    if soft != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        soft = hard
    if soft != resource.RLIM_INFINITY and soft < connections + RESERVED_FILES:
        log.warning("open_files_limited", limit=soft, max_connections=connections, needed=connections + RESERVED_FILES)


def is_half_free() -> bool:
    """True if this process has less than half of the files and connections open that it may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return True
    used = _DESCRIPTORS.stat().st_size or sum(1 for _ in _DESCRIPTORS.iterdir())  # Linux before 6.2 tells no size
    return 2 * used < soft
