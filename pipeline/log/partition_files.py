"""Names in a log directory: which of them a broker made. Pure.

Invariant: a start removes or reads nothing whose name a broker does not give. Operators keep their own files and
directories beside the partitions, and within them.
"""

import re
import uuid
from collections.abc import Iterable

from pipeline.log.checkpoint import (
    AUDIT_CHECKPOINT,
    FLUSHED_FIRST,
    PARTITION_METADATA,
    SYNC_FAILED,
    TAIL_LOST,
    TEMPORARY_SUFFIX,
)
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.log.segment_names import (
    BESIDE_LOG,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    segment_offset,
)
from pipeline.model import TopicPartition

_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DELETED = re.compile(r"(.+)\.[0-9a-f]{32}-delete")
_DELETED_MARK = "-delete"
_MAX_NAME_LENGTH = 255
"""What file systems allow in a name, in bytes; all names here are ASCII."""
_MAX_PARTITION = 2**31 - 1
_OF_PARTITION = (PARTITION_METADATA, LEADER_EPOCHS, TAIL_LOST, SYNC_FAILED, FLUSHED_FIRST, AUDIT_CHECKPOINT)
_OF_SEGMENT = (LOG_SUFFIX, *BESIDE_LOG, SNAPSHOT_SUFFIX)
_PASSING = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose directory has this name, None if it is none's."""
    found = _PARTITION.fullmatch(name)
    if found is None or found[1] in {".", ".."} or int(found[2]) > _MAX_PARTITION:
        return None
    return TopicPartition(found[1], int(found[2]))


def name_deleted(topic_partition: TopicPartition, unique: uuid.UUID) -> str:
    """The name of a partition's directory from its deletion until its files are removed, as in Kafka.

    The end of a long topic name is left out: the name may have 255 bytes.
    """
    suffix = f"-{topic_partition.partition}.{unique.hex}{_DELETED_MARK}"
    return topic_partition.topic[: _MAX_NAME_LENGTH - len(suffix)] + suffix


def is_deleted(name: str) -> bool:
    """Return True if `name_deleted` made this name."""
    found = _DELETED.fullmatch(name)
    return found is not None and parse_directory_name(found[1]) is not None


def looks_deleted(name: str) -> bool:
    """Return True if an operator may take the name for that of a deleted partition's directory."""
    return name.endswith(_DELETED_MARK)


def is_own_file(name: str) -> bool:
    """Return True if a broker may have made a file of this name in a partition's directory."""
    for suffix in _PASSING:
        name = name.removesuffix(suffix)
    return name in _OF_PARTITION or any(segment_offset(name, suffix) is not None for suffix in _OF_SEGMENT)


def may_be_partition(names: Iterable[str]) -> bool:
    """Return True if a directory with these files may be a partition's: a crash may leave an empty one."""
    names = list(names)
    return not names or any(map(is_own_file, names))
