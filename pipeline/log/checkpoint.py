"""Small files beside the logs, in Kafka's formats, each replaced as a whole.

Invariant: a reader finds the old content or the new one, whole, whatever happens while it is replaced.
"""

import base64
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from crc32c import crc32c

from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.files import Files
from pipeline.model import Offset, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEAN_OFFSETS, HIGH_WATERMARKS)
BOOT_ID = "boot-id"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
DIRECTORY_ID = "directory.id"
TAIL_LOST = "tail-lost"
SYNC_FAILED = "sync-failed"
FLUSHED_FIRST = "flushed-first"
PARTITION_METADATA = "partition.metadata"
AUDIT_CHECKPOINT = "audit-checkpoint"

TEMPORARY_SUFFIX = ".tmp"

_CHECKSUM = "#crc32c"
_ENTRY = re.compile(r"([^ ]+) ([0-9]{1,10}) ([0-9]{1,19})", re.ASCII)
_LINES_WITHOUT_CHECKSUM = 2
logger = get_logger(__name__)


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Write a file so that it is replaced at once and for good. Raises StorageError."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
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
    """Encode Kafka's offset checkpoint, version 0: a line with topic, partition and offset each.

    The last line, a checksum, has the form of an entry whose name no topic can have: Kafka ignores it.
    """
    lines = ["0", str(len(offsets) + 1)]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    body = ("\n".join(lines) + "\n").encode()
    return body + f"{_CHECKSUM} 0 {crc32c(body)}\n".encode()


def decode_offsets(content: bytes) -> dict[TopicPartition, Offset]:
    """Decode the output of `encode_offsets`, or of a version without checksums. Raises ValueError."""
    version, count, *lines = content.decode().splitlines()
    if version != "0" or count != str(len(lines)):
        raise ValueError("not an offset checkpoint of version 0, or cut off")
    if lines and lines[-1].startswith(f"{_CHECKSUM} "):
        line = lines.pop()
        body = content[: -len(line) - 1]
        if content != body + f"{_CHECKSUM} 0 {crc32c(body)}\n".encode():
            raise ValueError("an offset checkpoint with a wrong checksum")
    offsets = {}
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found is None:
            raise ValueError(f"an offset checkpoint with the line {line!r}")
        offsets[TopicPartition(found[1], int(found[2]))] = Offset(int(found[3]))
    return offsets


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, Offset]:
    """Read an offset checkpoint; nothing if the file is missing or damaged. Raises StorageError.

    Nothing is safe: without recovery points whole logs are checked, without log start offsets records that were
    deleted within a segment can be read again, and leaders find high watermarks anew.
    """
    content = read_file(files, path)
    if content is None:
        return {}
    try:
        return decode_offsets(content)
    except ValueError as error:
        logger.warning("checkpoint_damaged", path=str(path), error=str(error))
        return {}


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Lines of `key=value`."""
    return "".join(f"{key}={properties[key]}\n" for key in sorted(properties)).encode()


def decode_properties(content: bytes) -> dict[str, str]:
    """Decode lines of `key=value`; comments and empty lines are skipped."""
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
    """Decode the output of `encode_id`. Raises ValueError."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Encode Kafka's `partition.metadata`, the topic id of a directory (KIP-516), and a checksum that Kafka ignores."""
    body = f"version: 0\ntopic_id: {encode_id(topic_id)}\n"
    return f"{body}crc32c: {crc32c(body.encode())}\n".encode()


def read_partition_metadata(files: Files, directory: Path, *, is_on_disk: bool) -> uuid.UUID | None:
    """The topic id of a partition's directory, None if it was never written. Raises StorageError if it is unreadable.

    The id is on the disk once anything of the log is (`is_on_disk`); before, a crash may leave an invalid file.
    """
    path = directory / PARTITION_METADATA
    content = read_file(files, path)
    if content is None:
        return None
    try:
        return decode_partition_metadata(content)
    except ValueError as error:
        if not is_on_disk:
            return None
        raise StorageError(str(path), "holds no topic id; restore the file or remove the partition") from error


def decode_partition_metadata(content: bytes) -> uuid.UUID:
    """Decode the output of `encode_partition_metadata`, or of a version without checksums. Raises ValueError."""
    lines = content.decode().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if "topic_id" not in fields:
        raise ValueError("no topic id")
    topic_id = decode_id(fields["topic_id"])
    if encode_id(topic_id) != fields["topic_id"]:
        raise ValueError("no topic id")  # base64 skips what is no letter of it
    if len(lines) > _LINES_WITHOUT_CHECKSUM and content != encode_partition_metadata(topic_id):
        raise ValueError("a wrong checksum")
    return topic_id
