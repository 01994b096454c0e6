"""Counts of all commits of an Iceberg table by window, as a property of the table. Pure.

The audit wants the sum over all commits that loaded a window. Snapshots expire, and their counts with them, so each
commit leaves the sums in the transaction that adds its snapshot. Old windows are left out, and as many more as it takes
to keep the property short: `since_ms` tells from which window on the sums are whole.

Sums over contents (`sums`) go first if the property is too long, those of old windows before others. Those of a window
that lack batches of it, since an older program or a property without room left them out, have too few batches.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self
from zlib import compress, decompressobj

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.manifest import Manifest, WindowKey, add_counts, set_aside
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS, newest_window_ms
from pipeline.records.content_sums import ContentSums, add_content_sums
from pipeline.records.tally import Counts

MAX_BYTES: Final = 256 * 1024
_MAX_OPENED_BYTES: Final = 64 * 1024 * 1024


class WindowTotalsError(PipelineError):
    """The property is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTotals:
    """Counts, and records in quarantine, by partition and window. since_ms: None if all windows are whole."""

    counts: Mapping[WindowKey, Counts] = field(default_factory=dict)
    aside: Mapping[WindowKey, int] = field(default_factory=dict)
    sums: Mapping[WindowKey, ContentSums] = field(default_factory=dict)
    since_ms: int | None = None

    def after(self, manifests: Sequence[Manifest]) -> Self:
        """Return the totals with those of further commits."""
        counts, aside = [self.counts], dict(self.aside)
        for manifest in manifests:
            counts.append(manifest.counts)
            for key, records in set_aside(manifest.files).items():
                aside[key] = aside.get(key, 0) + records
        sums = add_content_sums([self.sums, *(manifest.sums for manifest in manifests)])
        return type(self)(counts=add_counts(counts), aside=aside, sums=sums, since_ms=self.since_ms)

    def knows(self, window_ms: int) -> bool:
        """Return True if the counts of a window are those of all commits."""
        return self.since_ms is None or window_ms >= self.since_ms

    def encode(self, last: Manifest) -> str:
        """Return the property after the commit `last`."""
        starts = sorted({start for _, start in (*self.counts, *self.aside)})
        oldest_ms = newest_window_ms(self.counts, last) - COUNTS_KEPT_MS
        kept = [start for start in starts if start >= oldest_ms and self.knows(start)]
        while True:
            first = kept[0] if kept else None
            since = self.since_ms if len(kept) == len(starts) else starts[-1] + 1 if first is None else first
            text = self._encoded(first, since, ())
            if len(text) <= MAX_BYTES or not kept:
                break
            kept = kept[len(kept) // 4 + 1 :]
        summed = sorted({start for _, start in self.sums}.intersection(kept))
        while summed:
            with_sums = self._encoded(first, since, summed)
            if len(with_sums) <= MAX_BYTES:
                return with_sums
            summed = summed[len(summed) // 4 + 1 :]
        return text

    def _encoded(self, first: int | None, since_ms: int | None, summed: Collection[int]) -> str:
        keys = sorted({key for key in (*self.counts, *self.aside) if first is not None and key[1] >= first})
        empty = Counts(0, 0, 0, 0)
        rows = []
        for key in keys:
            count = self.counts.get(key, empty)
            sums = (count.records, count.bytes, count.batches, count.crc_sum, self.aside.get(key, 0))
            rows.append([*key, *sums])
        document: dict[str, Any] = {"since_ms": since_ms, "windows": rows}
        if summed:
            starts = frozenset(summed)
            document["sums"] = [[*key, *sums] for key, sums in sorted(self.sums.items()) if key[1] in starts]
        return b64encode(compress(json.dumps(document).encode())).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the totals in a property. Raises WindowTotalsError."""
        try:
            document = json.loads(decompressobj().decompress(b64decode(text), _MAX_OPENED_BYTES))
            counts, aside = {}, {}
            for partition, start, *sums, set_aside_records in document["windows"]:
                counts[partition, start] = Counts(*sums)
                if set_aside_records:
                    aside[partition, start] = set_aside_records
            found = {(partition, start): ContentSums(*sums) for partition, start, *sums in document.get("sums", ())}
            return cls(counts=counts, aside=aside, sums=found, since_ms=document["since_ms"])
        except (ValueError, TypeError, KeyError) as error:
            raise WindowTotalsError(f"the totals by window are damaged: {error}") from error
