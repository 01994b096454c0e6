"""The folder of a render: what is written there, and what a former render left.

Invariants: a list in the folder names every file that renders have written, so that no other file is changed or
removed. A file whose text is right is not touched. Each file is replaced as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.errors import ConfigurationError

LIST_NAME = "rendered-files"


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
        return _write(folder, files, prune=prune)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds other files"
        raise ConfigurationError(str(folder), f"cannot be used: {reason}") from error


def _write(folder: Path, files: Mapping[str, str], *, prune: bool) -> RenderOutcome:
    known = _known_files(folder)
    changed = [path for path, text in files.items() if _text_of(folder / path) != text]
    for path in changed:
        if path not in known and (folder / path).exists():
            raise ConfigurationError(str(folder), f"{path} is there, and no render wrote it; choose another folder")
    former = sorted(path for path in known if path not in files and (folder / path).exists())
    stale = () if prune else tuple(former)
    _replace(folder / LIST_NAME, "".join(f"{path}\n" for path in sorted({*files, *former})))
    for path in changed:
        _replace(folder / path, files[path])
    removed = tuple(former) if prune else ()
    for path in removed:
        _remove(folder, path)
    _replace(folder / LIST_NAME, "".join(f"{path}\n" for path in sorted({*files, *stale})))
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
