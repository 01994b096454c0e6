"""Modes of a registry before an import, kept in a file beside the export while the import runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import ConfigurationError

SUFFIX = ".modes-before"


class ModesBefore:
    """Modes by subject or context, None the default context; None where there was none.

    Invariant: the file is on disk before the first mode is changed, and is removed after the last one was restored. A
    mode that is kept already is never replaced: it may have been changed by an import that was interrupted.
    """

    def __init__(self, path: Path, url: str, modes: Mapping[str | None, str | None]) -> None:
        self.path = path
        self._url = url
        self.modes = dict(modes)

    @classmethod
    def read(cls, export: Path, url: str) -> "ModesBefore":
        """Read what an interrupted import has left. Raises ConfigurationError if that was into another registry."""
        path = export.with_name(export.name + SUFFIX)
        url = url.rpartition("@")[2]  # without a name and password
        if not path.exists():
            return cls(path, url, {})
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            of_registry = str(document["registry"])
            modes = {scope or None: None if mode is None else str(mode) for scope, mode in document["modes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(str(path), f"cannot be read: {error}") from error
        if of_registry != url:
            reason = f"is of an import into {of_registry} that was interrupted: repeat that first, or remove the file"
            raise ConfigurationError(str(path), reason)
        return cls(path, url, modes)

    def keep(self, modes: Mapping[str | None, str | None]) -> None:
        """Keep further modes. Raises ConfigurationError if the file cannot be written."""
        self.modes = {**modes, **self.modes}
        document = {"registry": self._url, "modes": {scope or "": mode for scope, mode in self.modes.items()}}
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}. An import keeps the registry's modes there"
            raise ConfigurationError(str(self.path), reason) from error

    def forget(self) -> None:
        """Remove the file."""
        self.modes = {}
        self.path.unlink(missing_ok=True)
