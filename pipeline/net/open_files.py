"""How many files and connections the operating system lets this process have open."""

import resource

import structlog

RESERVED_FILES = 500
"""For what is no connection: logs, ZooKeeper, HTTP."""

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
