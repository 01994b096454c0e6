"""Which broker owns a log directory, and in which boot of the machine it was last used.

Invariants:

- A directory belongs to one broker of one cluster, by `meta.properties`; its own id (KIP-858) is made once.
- `boot-id` names a boot of the machine of which this is true: nothing that was written by a process which did not stop
  cleanly was lost since, or the loss was taken care of. So it is written when there is nothing to lose, after a clean
  stop, or by `settle_tails`. A directory without it, an older version's, counts as one of another boot.
- `boot-id` names the directory itself, too, by inodes: in a copy of a directory in use, an older state that somebody
  restored, it is the note of another directory, and counts as one of another boot. A note without inodes is an older
  version's.
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
    """Return True if the machine runs since the boot that is noted, and the note is no copy. Raises StorageError."""
    content = read_file(files, path / BOOT_ID)
    return bool(content) and content in {files.boot_id().encode(), _stamp(files, path)}


def note_boot(files: Files, path: Path) -> None:
    """Note the present boot, if it is not noted. Raises StorageError."""
    stamp = _stamp(files, path)
    if read_file(files, path / BOOT_ID) != stamp:
        replace_file(files, path / BOOT_ID, stamp)


def _stamp(files: Files, path: Path) -> bytes:
    """Return the note of this boot for this directory; empty if the boot is not known.

    The devices do not count: a disk that was mounted again may have another number. A copy may get an inode that was
    freed, but hardly both.
    """
    boot = files.boot_id()
    inodes = (files.file_id(found).rpartition(":")[2] for found in (path, path / META_PROPERTIES))
    return " ".join([boot, *inodes]).encode() if boot else b""


def take_ownership(files: Files, path: Path, broker_id: BrokerId, cluster_id: str, rng: random.Random) -> uuid.UUID:
    """Make the directory this broker's, if it was nobody's, and return the directory's id."""
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
    """The lock files of directories, as no copy of them, and no other boot or machine, has them.

    Those that are not there are passed over; all, if the boot is not known.
    """
    boot, found = files.boot_id(), []
    for path in paths if boot else ():
        with suppress(StorageError):
            found.append(f"{boot}:{files.file_id(path / LOCK)}")
    return found
