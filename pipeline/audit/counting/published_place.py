"""The place of a process's last report in the audit topic: kept in a file over restarts, and looked up again.

Invariant: a place is of a report that was acknowledged. So if the topic has another record there, or none, or is
another topic, then acknowledged reports are gone, of this process and perhaps of others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio
from crc32c import crc32c

from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionBatchError, PartitionOffsetOutOfRangeError
from pipeline.diagnostics import get_logger
from pipeline.errors import DeadlineExceededError, StorageError
from pipeline.log.checkpoint import read_file, replace_file
from pipeline.log.files import Files
from pipeline.model import TopicPartition

FILE_NAME: Final = "audit-published"
LOOK_UP_TIMEOUT_S: Final = 10.0
READ_PARTITION: Final = 0
"""Partition of the audit topic that audits read, however many it has."""
EVENTS_READ: Final = TopicPartition(AUDIT_TOPIC, READ_PARTITION)
MAX_UNSEEN: Final = 16
"""Places that could not be read back and are kept. With more of them reports count as lost."""
_CRC_DIGITS: Final = 8

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPlace:
    """Place of an acknowledged report. `leader_epoch`: of the topic's partition before it was sent, as far as known."""

    topic_id: UUID
    leader_epoch: int
    offset: int
    digest: str
    """Digest of the report's bytes."""
    unseen: "tuple[PublishedPlace, ...]" = ()
    """Earlier places at which the reports could not be read back yet."""


def report_digest(value: bytes) -> str:
    """Return a digest by which a report is known again."""
    return blake2b(value, digest_size=16).hexdigest()


async def is_still_there(cluster: Cluster, place: PublishedPlace) -> bool:
    """Return False if the topic has another record at a place, or none, though its log goes on behind.

    What retention or DeleteRecords removed counts as there: readers notice that themselves. A batch that is damaged is
    gone. Raises PipelineError if the topic cannot be read.
    """
    with trio.move_on_after(LOOK_UP_TIMEOUT_S):
        async with open_consumer(cluster, ConsumerConfig()) as consumer:
            consumer.add(EVENTS_READ, place.offset, place.topic_id)
            try:
                async for record in consumer.records():
                    return record.offset == place.offset and report_digest(record.value or b"") == place.digest
            except PartitionOffsetOutOfRangeError as error:
                return place.offset < error.log_start_offset
            except PartitionBatchError:
                return False
    raise DeadlineExceededError(f"{EVENTS_READ} was not read within {LOOK_UP_TIMEOUT_S:g} s")


class PlaceFile:
    """Keeps the place in a file of a directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / FILE_NAME
        self._files = files

    def read(self) -> PublishedPlace | None:
        """Return the place that was kept; None if there is none. A damaged file is none, and logged. Blocks."""
        try:
            content = read_file(self._files, self._path)
            return None if content is None else _decode(content)
        except (StorageError, ValueError, KeyError, TypeError) as error:
            logger.warning("audit_place_unreadable", topic=AUDIT_TOPIC, error=str(error))
            return None

    def write(self, place: PublishedPlace) -> None:
        """Keep a place. A failure is logged. Blocks."""
        try:
            replace_file(self._files, self._path, _encode(place))
        except StorageError as error:
            logger.warning("audit_place_not_written", topic=AUDIT_TOPIC, error=str(error))


def _encode(place: PublishedPlace) -> bytes:
    document = json.dumps(_values(place) | {"unseen": [_values(each) for each in place.unseen]}).encode()
    return b"%08x %s\n" % (crc32c(document), document)


def _values(place: PublishedPlace) -> dict[str, Any]:
    return {
        "topic_id": str(place.topic_id),
        "leader_epoch": place.leader_epoch,
        "offset": place.offset,
        "digest": place.digest,
    }


def _decode(content: bytes) -> PublishedPlace:
    crc, document = content[:_CRC_DIGITS], content[_CRC_DIGITS + 1 :].rstrip(b"\n")
    if crc != b"%08x" % crc32c(document):
        raise ValueError("the checksum is wrong")
    values: dict[str, Any] = json.loads(document)
    return replace(_place(values), unseen=tuple(map(_place, values.get("unseen", ()))))


def _place(values: Mapping[str, Any]) -> PublishedPlace:
    return PublishedPlace(
        topic_id=UUID(values["topic_id"]),
        leader_epoch=int(values["leader_epoch"]),
        offset=int(values["offset"]),
        digest=str(values["digest"]),
    )
