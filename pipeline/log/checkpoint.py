"""Small files beside the logs, in Kafka's formats, each replaced as a whole.

Invariant: a reader finds the old content or the new one, whole, whatever happens while it is replaced.
"""

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.files import Files
from pipeline.model import Offset, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
BOOT_ID = "boot-id"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
DIRECTORY_ID = "directory.id"
TAIL_LOST = "tail-lost"
PARTITION_METADATA = "partition.metadata"

_TEMPORARY_SUFFIX = ".tmp"


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Write a file so that it is replaced at once and for good. Raises StorageError."""
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    file = files.open(temporary, create=True)
    file.truncate(0)
    file.write_at(content, 0)
    file.sync()
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def read_file(files: Files, path: Path) -> bytes | None:
    """All of a small file, None if there is none. Raises StorageError."""
    if not files.exists(path):
        return None
    file = files.open(path)
    return file.read_at(file.size(), 0)


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    """Kafka's offset checkpoint, version 0: a line with topic, partition and offset each."""
    lines = ["0", str(len(offsets))]
    lines += [f"{name.topic} {name.partition} {offsets[name]}" for name in sorted(offsets)]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, Offset]:
    """What `encode_offsets` wrote. Raises ValueError."""
    version, count, *lines = content.decode().splitlines()
    if version != "0" or int(count) != len(lines):
        raise ValueError("not an offset checkpoint of version 0, or cut off")
    offsets = {}
    for line in lines:
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
    return offsets


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, Offset]:
    """Of an offset checkpoint; none if the file is missing or damaged.

    To know nothing is safe: without recovery points whole logs are checked, without log start offsets what was
    deleted within a segment can be read again.
    """
    content = read_file(files, path)
    if content is None:
        return {}
    try:
        return decode_offsets(content)
    except ValueError:
        return {}


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Lines of `key=value`."""
    return "".join(f"{key}={properties[key]}\n" for key in sorted(properties)).encode()


def decode_properties(content: bytes) -> dict[str, str]:
    """What `encode_properties` wrote; comments and empty lines are passed over."""
    lines = (line.strip() for line in content.decode(errors="replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_directory_id(files: Files, directory: Path) -> uuid.UUID | None:
    """The id of a log directory (KIP-858), None if it has none yet. Raises StorageError if unreadable."""
    path = directory / META_PROPERTIES
    found = decode_properties(read_file(files, path) or b"").get(DIRECTORY_ID)
    try:
        return None if found is None else decode_id(found)
    except ValueError as error:
        reason = f"says {DIRECTORY_ID}={found}, which is no id; restore the file, or remove the line for a new id"
        raise StorageError(str(path), reason) from error


def encode_id(value: uuid.UUID) -> str:
    """Kafka's form of ids: base64url of the 16 bytes, 22 letters, no padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_id(text: str) -> uuid.UUID:
    """What `encode_id` wrote. Raises ValueError."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Kafka's `partition.metadata`: which of the topics that ever bore the name this directory belongs to (KIP-516)."""
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()


def read_partition_metadata(files: Files, directory: Path, *, is_on_disk: bool) -> uuid.UUID | None:
    """The topic id of a partition's directory, None if it was never written.

    It is on the disk once anything of the log is; before, a crash may leave nonsense, which tells nothing. Raises
    StorageError if unreadable.
    """
    path = directory / PARTITION_METADATA
    content = read_file(files, path)
    if content is None:
        return None
    fields = dict(line.split(": ", 1) for line in content.decode(errors="replace").splitlines() if ": " in line)
    try:
        return decode_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        if not is_on_disk:
            return None
        raise StorageError(str(path), "holds no topic id; restore the file or remove the partition") from error
