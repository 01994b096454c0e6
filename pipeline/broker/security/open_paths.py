"""Files and directories of a secured broker that every account of its host may read: ACLs do not protect these."""

import stat
from collections.abc import Iterable
from pathlib import Path

from pipeline.diagnostics import get_logger

logger = get_logger(__name__)


def warn_of_open_paths(paths: Iterable[Path]) -> None:
    """Log a warning for each path that other accounts may read: topics lie there in clear text, or private keys."""
    for path in paths:
        if is_open(path):
            logger.warning("readable_by_all_accounts", path=str(path), remedy=f"chmod o-rwx {path}")


def is_open(path: Path) -> bool:
    """True if other accounts than the owner and the group may read the path, and pass all directories above it."""
    try:
        is_passable = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
        return is_passable and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
