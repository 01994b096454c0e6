"""The version of this program, and the commit that it was installed from, if that is known."""

import platform
from pathlib import Path

VERSION = "0.2.0"

_REPOSITORY = Path(__file__).parents[1] / ".git"
_PACKAGED = Path(__file__).with_name("COMMIT")
"""File of an installed package with the commit that it was built from, and `-dirty` if its files were changed."""
_COMMIT_DIGITS = 12


def source_commit(repository: Path = _REPOSITORY) -> str | None:
    """Return the commit of the working tree that the program runs from, or that its package was built from, or None."""
    try:
        if _PACKAGED.exists():
            commit, dash, dirty = _PACKAGED.read_text(encoding="ascii").strip().partition("-")
            return commit[:_COMMIT_DIGITS] + dash + dirty
        head = (repository / "HEAD").read_text(encoding="ascii").strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head[:_COMMIT_DIGITS]
        loose = repository / name
        if loose.is_file():
            return loose.read_text(encoding="ascii").strip()[:_COMMIT_DIGITS]
        packed = (repository / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((line[:_COMMIT_DIGITS] for line in packed if line.endswith(f" {name}")), None)


def describe_build() -> dict[str, str]:
    """Return version, commit (empty if unknown) and version of Python, as logs and metrics show them."""
    return {"version": VERSION, "commit": source_commit() or "", "python": platform.python_version()}
