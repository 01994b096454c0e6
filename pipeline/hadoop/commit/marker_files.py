"""Files of the markers of complete hours: where they lie, and how they come to folders that lack them.

Invariant: all markers of an hour lie in each folder that holds files of the hour (loads may have named folders by
several formats), newer ones first: a marker that was superseded is never alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from pipeline.hadoop.commit.layout import TopicLayout, hour_folder, hour_of_folder
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.doors import FileSystem, PathExistsError

COMPLETE: Final = "_COMPLETE"
REOPENED: Final = "_REOPENED"
_MARKER: Final = re.compile(rf"{COMPLETE}(\.\d+)?|{REOPENED}\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerFiles:
    """Markers that are written: the folders of each name, by hour."""

    files: FileSystem
    layout: TopicLayout
    written: Mapping[int, Mapping[str, set[str]]]

    @classmethod
    def listed(cls, files: FileSystem, layout: TopicLayout) -> Self:
        """List the markers of all hours. Raises StorageError."""
        found: dict[int, dict[str, set[str]]] = {}
        for data_folder in layout.data_folders:
            for info in files.list_files(data_folder, recursive=True):
                folder, _, name = info.path.rpartition("/")
                hour_ms = hour_of_folder(folder)
                if hour_ms is not None and _MARKER.fullmatch(name):
                    found.setdefault(hour_ms, {}).setdefault(name, set()).add(folder)
        return cls(files=files, layout=layout, written=found)

    def path(self, hour_ms: int, name: str) -> str:
        """Return the path of one copy of a marker."""
        return f"{min(self.written[hour_ms][name])}/{name}"

    def folders(self, state: TableState) -> dict[int, list[str]]:
        """Return the folders of each hour that has files or markers."""
        folders: dict[int, set[str]] = {
            hour_ms: set().union(*names.values()) for hour_ms, names in self.written.items()
        }
        for file in state.data_files():
            if file.hour_ms is not None:
                folders.setdefault(file.hour_ms, set()).add(self.layout.absolute(file.path).rpartition("/")[0])
        return {hour_ms: sorted(found) for hour_ms, found in folders.items()}

    def copy(self, folders: Mapping[int, Sequence[str]], run_id: str) -> None:
        """Copy markers to folders of their hours that lack them: of files that came since, or after a crash."""
        for hour_ms, names in self.written.items():
            for name in sorted(names, key=_order, reverse=True):
                for folder in set(folders[hour_ms]) - names[name]:
                    _write(self.files, folder, name, self.files.read(self.path(hour_ms, name)), run_id)

    def write(
        self,
        state: TableState,
        folders: Mapping[int, Sequence[str]],
        hour_ms: int,
        name: str,
        document: Mapping[str, Any],
        run_id: str,
    ) -> None:
        """Write a marker to the hour's folders, whole or not at all, where there is none."""
        content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
        named = hour_folder(hour_ms, "hourly" if state.last is None else state.last.path_format)
        for folder in folders.get(hour_ms, [self.layout.absolute(named)]):
            _write(self.files, folder, name, content, run_id)


def _order(name: str) -> tuple[int, bool]:
    """Return the place of a marker's name among those of its hour."""
    kind, _, generation = name.partition(".")
    return int(generation or 1), kind == COMPLETE


def _write(files: FileSystem, folder: str, name: str, content: bytes, run_id: str) -> None:
    with suppress(PathExistsError):
        files.publish_exclusive(f"{folder}/{name}", content, temporary=f"{folder}/.{name}.{run_id}")
