"""Limit of open files and connections of this process."""

import resource
from pathlib import Path

from pipeline.diagnostics import get_logger

RESERVED_FILES = 500
"""Open files beside connections: logs, ZooKeeper, HTTP."""
_DESCRIPTORS = Path("/proc/self/fd")

logger = get_logger(__name__)


def raise_open_files_limit(connections: int) -> None:
    """Raise the limit to the hard limit, and warn if so many connections do not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, connections + RESERVED_FILES)
    if soft != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        soft = hard
    if soft != resource.RLIM_INFINITY and soft < connections + RESERVED_FILES:
        needed = connections + RESERVED_FILES
        logger.warning("open_files_limited", limit=soft, max_connections=connections, needed=needed)


def is_half_free() -> bool:
    """True if the process has fewer than half of the allowed files and connections open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return True
    used = _DESCRIPTORS.stat().st_size or sum(1 for _ in _DESCRIPTORS.iterdir())  # no size before Linux 6.2
    return 2 * used < soft
