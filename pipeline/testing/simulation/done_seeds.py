"""A file of the seeds that have passed, so that a long run that was interrupted can be resumed.

Invariant: the file counts for the code that it was made with. Its first line names that code; another line is a seed.
"""

import hashlib
from pathlib import Path

import pipeline


def code_state(root: Path = Path(pipeline.__file__).parent) -> str:
    """Return a digest of all code in a folder, without one of this package."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class DoneSeeds:
    """The seeds in a file. A seed that was added is in the file when `add` returns."""

    def __init__(self, path: Path | None, code: str) -> None:
        """Read the file, or begin it anew if it was made with other code. Without a path nothing is kept."""
        self._path = path
        self.seeds: frozenset[int] = frozenset()
        self.is_of_other_code = False
        if path is None:
            return
        written = path.read_text() if path.exists() else ""
        lines = written[: written.rfind("\n") + 1].splitlines()  # a line without an end was cut off
        if lines[:1] == [code]:
            self.seeds = frozenset(int(line) for line in lines[1:] if line.isdecimal())
        else:
            self.is_of_other_code = bool(written)
            path.write_text(f"{code}\n")

    def add(self, seed: int) -> None:
        """A seed has passed."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{seed}\n")
