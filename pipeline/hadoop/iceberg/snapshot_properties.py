"""The form of a manifest as properties of an Iceberg snapshot and table. Pure.

Data files are left out, since Iceberg lists them; files of the quarantine, which is no part of the table, stay.

Invariant: the properties of the table hold what the next load needs, so that it goes on also when all snapshots of
loads have expired. They change in the transaction that adds the snapshot.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from zlib import compress, decompressobj

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.manifest import Manifest, sha256_of

MANIFEST: Final = "pipeline.manifest"
SHA256: Final = "pipeline.sha256"
RUN_ID: Final = "pipeline.run-id"
SEQUENCE: Final = "pipeline.sequence"
OFFSETS: Final = "pipeline.offsets"
TOTALS: Final = "pipeline.window-totals"
"""Counts of all commits by window (`window_totals.py`); of the table alone."""
ICEBERG_SEQUENCE: Final = "pipeline.iceberg-sequence-number"
ICEBERG_SNAPSHOT: Final = "pipeline.iceberg-snapshot-id"
"""Sequence number and id of the Iceberg snapshot that the table's properties belong to."""

PLAIN_BYTES: Final = 16 * 1024
"""A longer manifest is compressed."""
MAX_BYTES: Final = 4 * 1024 * 1024
"""Bound of a property: the catalog reads all snapshots' properties for each commit."""
MAX_BYTES_WITH_SUMS: Final = 256 * 1024
"""A longer manifest has no sums over contents in a snapshot; those of all commits are in the table's properties."""
_MAX_OPENED_BYTES: Final = 256 * 1024 * 1024
_COMPRESSED: Final = "zlib:"


class SnapshotPropertyError(PipelineError):
    """Properties of a table are missing, damaged or too large."""


def snapshot_properties(manifest: Manifest) -> dict[str, str]:
    """Return the properties of a load's snapshot. Sums over contents are left out if they make them too long.

    Raises SnapshotPropertyError for a manifest that is too large.
    """
    kept = replace(manifest, files=tuple(file for file in manifest.files if file.quarantined))
    if kept.sums and len(_encoded(kept)[1]) > MAX_BYTES_WITH_SUMS:
        kept = replace(kept, sums={})
    return _properties(kept)


def table_properties(manifest: Manifest, iceberg_sequence: int, snapshot_id: int) -> dict[str, str]:
    """Return the properties of the table after the load: the last manifest without files and counts."""
    known = replace(manifest, files=(), counts={}, sums={}, aborted=(), ranges=(), skipped=())
    checksum = snapshot_properties(manifest)[SHA256]
    place = {ICEBERG_SEQUENCE: str(iceberg_sequence), ICEBERG_SNAPSHOT: str(snapshot_id)}
    return _properties(known) | place | {SHA256: checksum}


def manifest_in(properties: Mapping[str, str | None], name: str) -> tuple[Manifest, str]:
    """Return the manifest in properties, and the checksum by which the next one refers to it."""
    text, checksum = properties.get(MANIFEST), properties.get(SHA256)
    if text is None or checksum is None:
        raise SnapshotPropertyError(f"{name} has no property {MANIFEST if text is None else SHA256}")
    return Manifest.decode(_opened(text, name), name), checksum


def _encoded(manifest: Manifest) -> tuple[bytes, str]:
    """Return an encoded manifest, and the property that holds it."""
    encoded = manifest.encode()
    text = encoded.decode()
    return encoded, text if len(text) <= PLAIN_BYTES else _COMPRESSED + b64encode(compress(encoded)).decode()


def _properties(manifest: Manifest) -> dict[str, str]:
    encoded, text = _encoded(manifest)
    if len(text) > MAX_BYTES:
        raise SnapshotPropertyError(
            f"{manifest.topic}: the manifest takes {len(text)} bytes as a property, more than {MAX_BYTES}. "
            "Use table=manifest for a topic of so many partitions and windows"
        )
    return {
        MANIFEST: text,
        SHA256: sha256_of(encoded),
        RUN_ID: manifest.run_id,
        SEQUENCE: str(manifest.sequence),
        OFFSETS: json.dumps({str(partition): offset for partition, offset in sorted(manifest.offsets.items())}),
    }


def _opened(text: str, name: str) -> bytes:
    if not text.startswith(_COMPRESSED):
        return text.encode()
    try:
        return decompressobj().decompress(b64decode(text.removeprefix(_COMPRESSED)), _MAX_OPENED_BYTES)
    except ValueError as error:
        raise SnapshotPropertyError(f"{name}: {MANIFEST} is damaged: {error}") from error
