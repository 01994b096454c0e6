"""The folder of a render: what is written there, and what a former render left.

Invariants: a list in the folder names every file that renders have written, so that no other file is changed or
removed. A file whose text is right is not touched. Each file is replaced as a whole. While files of two descriptions
may lie beside each other, UNFINISHED_NAME is there: the playbooks take no such folder. One render at a time changes
a folder.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.deployment.files import LIST_NAME, UNFINISHED_NAME
from pipeline.errors import ConfigurationError

UNFINISHED = "A render was interrupted here: run `pipeline deploy render` again before you use these files.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOutcome:
    """Counts and names of the files of one render."""

    written: int
    unchanged: int
    removed: tuple[str, ...]
    stale: tuple[str, ...]
    """Files of a former render that are still there."""


def write_render(folder: Path, files: Mapping[str, str], *, prune: bool) -> RenderOutcome:
    """Write files by their paths below a folder; with `prune` remove those of former renders that are not among them.

    Raises ConfigurationError if a file in the way is not of a render, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder):
            return _write(folder, files, prune=prune)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds other files"
        raise ConfigurationError(str(folder), f"cannot be used: {reason}") from error


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder against other renders. Raises ConfigurationError if another one writes there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(str(folder), "another render writes there; run the command again") from error
        except OSError:
            pass  # a file system without such locks
        yield
    finally:
        os.close(descriptor)


def _write(folder: Path, files: Mapping[str, str], *, prune: bool) -> RenderOutcome:
    known = _known_files(folder)
    changed = [path for path, text in files.items() if _text_of(folder / path) != text]
    for path in changed:
        if path not in known and (folder / path).exists():
            raise ConfigurationError(str(folder), f"{path} is there, and no render wrote it; choose another folder")
    former = sorted(path for path in known if path not in files and (folder / path).exists())
    stale = () if prune else tuple(former)
    if changed or (prune and former):
        _replace(folder / UNFINISHED_NAME, UNFINISHED)
    _replace(folder / LIST_NAME, "".join(f"{path}\n" for path in sorted({*files, *former})))
    for path in changed:
        _replace(folder / path, files[path])
    removed = tuple(former) if prune else ()
    for path in removed:
        _remove(folder, path)
    _replace(folder / LIST_NAME, "".join(f"{path}\n" for path in sorted({*files, *stale})))
    if (folder / UNFINISHED_NAME).exists():
        (folder / UNFINISHED_NAME).unlink()
    return RenderOutcome(written=len(changed), unchanged=len(files) - len(changed), removed=removed, stale=stale)


def _known_files(folder: Path) -> frozenset[str]:
    """Return the files that former renders wrote. Raises ConfigurationError for a list that leads out of the folder."""
    paths = (_text_of(folder / LIST_NAME) or "").splitlines()
    for path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ConfigurationError(str(folder / LIST_NAME), f"names {path}, which is not in the folder")
    return frozenset(paths)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    if _text_of(path) == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _remove(folder: Path, path: str) -> None:
    """Remove a file, and the folders that it leaves empty."""
    (folder / path).unlink()
    for parent in (folder / path).parents:
        if parent == folder or any(parent.iterdir()):
            return
        parent.rmdir()
