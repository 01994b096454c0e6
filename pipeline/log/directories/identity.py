"""Owner of a log directory, and the boot of the machine in which it was last used.

Invariants:

- A directory belongs to one broker of one cluster, by `meta.properties`; its own id (KIP-858) is made once.
- `boot-id` names a boot of the machine since which no write of a process that did not stop cleanly was lost, or since
  which the loss was settled. So it is written when there is nothing to lose, after a clean stop, or by `settle_tails`.
  A directory without it (of an older version) counts as one of another boot.
- `boot-id` also names the directory, by inodes: in a restored copy of a directory it is the note of another directory,
  and counts as one of another boot. A note without inodes is of an older version.
"""

import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigurationError, StorageError
from pipeline.log.checkpoint import (
    BOOT_ID,
    DIRECTORY_ID,
    LOCK,
    META_PROPERTIES,
    decode_properties,
    encode_id,
    encode_properties,
    read_directory_id,
    read_file,
    replace_file,
)
from pipeline.log.files import Files
from pipeline.model import BrokerId


def is_same_boot(files: Files, path: Path) -> bool:
    """Return True if the present boot is noted, and the note is no copy. Raises StorageError."""
    content = read_file(files, path / BOOT_ID)
    return bool(content) and content in {files.boot_id().encode(), _stamp(files, path)}


def note_boot(files: Files, path: Path) -> None:
    """Note the present boot, if it is not noted. Raises StorageError."""
    stamp = _stamp(files, path)
    if read_file(files, path / BOOT_ID) != stamp:
        replace_file(files, path / BOOT_ID, stamp)


def _stamp(files: Files, path: Path) -> bytes:
    """Return the note of this boot for this directory; empty if the boot is not known.

    Devices do not count: a disk that is mounted again may get another number. A copy may reuse one inode, hardly both.
    """
    boot = files.boot_id()
    inodes = (files.file_id(found).rpartition(":")[2] for found in (path, path / META_PROPERTIES))
    return " ".join([boot, *inodes]).encode() if boot else b""


def take_ownership(files: Files, path: Path, broker_id: BrokerId, cluster_id: str, rng: random.Random) -> uuid.UUID:
    """Assign a new directory to this broker; returns the directory's id. Raises ConfigurationError, StorageError."""
    mine = {"version": "0", "broker.id": str(broker_id), "cluster.id": cluster_id}
    content = read_file(files, path / META_PROPERTIES)
    found = mine if content is None else decode_properties(content)
    for key in ("broker.id", "cluster.id"):
        if key not in found:
            raise ConfigurationError(
                "log.dirs",
                f"{path / META_PROPERTIES} names no {key}: restore the file, or write {key}={mine[key]} into it if the "
                "directory is this broker's",
            )
        if found[key] != mine[key]:
            raise ConfigurationError(
                "log.dirs", f"{path} belongs to {key} {found.get(key)}, not {mine[key]} (says {META_PROPERTIES} in it)"
            )
    directory_id = read_directory_id(files, path)
    if directory_id is None:
        directory_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        properties = {**found, DIRECTORY_ID: encode_id(directory_id)}
        replace_file(files, path / META_PROPERTIES, encode_properties(properties))
    return directory_id


def find_lock_ids(paths: Sequence[Path], files: Files) -> Sequence[str]:
    """Ids of the lock files of directories, which no copy, other boot or other machine has.

    Missing files are skipped; all are if the boot is not known.
    """
    boot, found = files.boot_id(), []
    for path in paths if boot else ():
        with suppress(StorageError):
            found.append(f"{boot}:{files.file_id(path / LOCK)}")
    return found
