"""The state of a topic's table after a commit: a fold over its manifests. Pure.

Invariant: folding all manifests, or a checkpoint of the fold and the manifests after it, gives the same state; but
counts of windows that lie more than COUNTS_KEPT_MS before the newest window may be left out of a checkpoint. A window
of the future, as of a producer whose clock is wrong, makes no other one old.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.hadoop.commit.column_files import changed
from pipeline.hadoop.commit.manifest import DataFile, Manifest, ManifestError, WindowKey, add_counts, check_follows
from pipeline.records.content_sums import ContentSums, add_content_sums
from pipeline.records.tally import HOUR_MS, Counts

COUNTS_KEPT_MS: Final = 31 * 24 * HOUR_MS
"""Age in ms, by the newest window, up to which checkpoints keep counts by window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Live files by path (oldest commit first), counts by window, and the last manifest with its checksum."""

    last: Manifest | None = None
    sha256: str | None = None
    files: Mapping[str, DataFile] = field(default_factory=dict)
    counts: Mapping[WindowKey, Counts] = field(default_factory=dict)
    sums: Mapping[WindowKey, ContentSums] = field(default_factory=dict)

    @property
    def sequence(self) -> int:
        """Number of the last commit; 0 before the first."""
        return 0 if self.last is None else self.last.sequence

    @property
    def offsets(self) -> Mapping[int, int]:
        """Next offset to load, by partition."""
        return {} if self.last is None else self.last.offsets

    def data_files(self, *, quarantined: bool = False) -> list[DataFile]:
        """Return the data files that readers may read, or those of the quarantine."""
        return [file for file in self.files.values() if file.quarantined == quarantined]


def with_commits(state: TableState, manifests: Iterable[tuple[Manifest, str]]) -> TableState:
    """Return the state after `manifests`, each with its checksum. Raises ManifestError for one that does not follow."""
    added: dict[str, DataFile] = {}
    removed: set[str] = set()
    counts, sums = [state.counts], [state.sums]
    last, sha256 = state.last, state.sha256
    for manifest, checksum in manifests:
        check_follows(manifest, last, sha256)
        for path in manifest.removed:
            if added.pop(path, None) is not None:
                continue
            if path in removed or path not in state.files:
                raise ManifestError(str(manifest.sequence), f"removes {path}, which is no live file")
            removed.add(path)
        added |= {file.path: file for file in manifest.files}
        counts.append(manifest.counts)
        sums.append(manifest.sums)
        last, sha256 = manifest, checksum
    files = changed(state.files, removed, added)
    return TableState(last=last, sha256=sha256, files=files, counts=add_counts(counts), sums=add_content_sums(sums))


def newest_window_ms(counts: Mapping[WindowKey, Counts], last: Manifest) -> int:
    """Return the start of the newest window, or the time of the last commit if that is earlier."""
    return min(max((start for _, start in counts), default=0), last.created_ms)


def recent_counts(counts: Mapping[WindowKey, Counts], last: Manifest) -> dict[WindowKey, Counts]:
    """Return the counts that the checkpoint of the commit `last` keeps."""
    oldest_ms = newest_window_ms(counts, last) - COUNTS_KEPT_MS
    return {key: value for key, value in counts.items() if key[1] >= oldest_ms}
