"""The monitoring event (paper section 4): the counts of one tier, published to the audit topic.

Invariants, by which events may be lost, repeated or overtaken without changing a sum:
A. The counts of an event are cumulative: all batches of the window up to `revision`, which is an offset (broker, load)
   or a sequence number (producer).
B. Of two events with the same source and window the one with the higher revision holds. All replicas of a partition
   are one source, since their counts up to an offset are equal, unless a replica never had the beginning of the log.
   So of two events of brokers the one with more records holds.
C. A broker reports only committed batches. If committed records were lost nevertheless (the end of the only replica,
   an unclean election), the next leader claims its epoch: the log goes on from the offset of the claim, and reports of
   lower epochs beyond that offset are void.
D. A recreated topic is another source: `instance` is the topic's id. The source that reported last holds.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipeline.audit.events.encoding import AuditMessageError
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier, is_audited
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import CodecCounts, Counts

__all__ = ["AUDIT_TOPIC", "AuditMessageError", "Tier", "is_audited"]
MESSAGE_VERSION = 2
MAX_WINDOWS_PER_MESSAGE = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSource:
    """A counter of a partition. Brokers and loads of a cluster continue each other's counts; each producer is alone.

    `instance` is the id of a producer's life or, for brokers, of the topic; loads have none.
    """

    tier: Tier
    cluster: str
    partition: TopicPartition
    instance: str = ""


class EpochClaim(NamedTuple):
    """States that `leader_epoch` begins at `start_offset`."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """A monitoring event. `leader_epoch` is the epoch of the last batch that a broker counted; 0 for other tiers."""

    source: AuditSource
    revision: int
    created_ms: int
    window_ms: int
    leader_epoch: int = 0
    claims: tuple[EpochClaim, ...] = ()
    windows: Mapping[int, Counts]
    """Counts up to `revision` by window start (ms since 1970 UTC), for the windows that changed."""
    quarantined: Mapping[int, int] = field(default_factory=dict)
    """Of a load: records of some of these windows that are in its quarantine, and not among the counts."""
    lost_offsets: int = 0
    """Of a load: offsets up to `revision` that were deleted before they could be loaded."""


def portions(event: AuditEvent) -> Iterator[AuditEvent]:
    """Split an event into messages of bounded size. Each holds for the windows it names, so their order is free.

    An event without windows is one message: it may bear claims.
    """
    windows = sorted(event.windows.items())
    for first in range(0, max(1, len(windows)), MAX_WINDOWS_PER_MESSAGE):
        portion = dict(windows[first : first + MAX_WINDOWS_PER_MESSAGE])
        quarantined = {start: records for start, records in event.quarantined.items() if start in portion}
        yield replace(event, windows=portion, quarantined=quarantined)


def encode_key(source: AuditSource) -> bytes:
    """Return the record key, which is equal for events that replace each other."""
    partition = source.partition
    return f"{source.tier}/{source.cluster}/{source.instance}/{partition.topic}/{partition.partition}".encode()


def encode_audit_event(event: AuditEvent) -> bytes:
    """Return the event as JSON, as documented in docs/audit.md."""
    source = event.source
    document = {
        "version": MESSAGE_VERSION,
        "tier": source.tier,
        "cluster": source.cluster,
        "instance": source.instance,
        "topic": source.partition.topic,
        "partition": source.partition.partition,
        "leader_epoch": event.leader_epoch,
        "claims": event.claims,
        "revision": event.revision,
        "created_ms": event.created_ms,
        "window_ms": event.window_ms,
        "windows": [[start, c.records, c.bytes, c.batches, c.crc_sum] for start, c in sorted(event.windows.items())],
    }
    codecs = [
        [start, counts.codecs.header_sum, *counts.codecs.batches]
        for start, counts in sorted(event.windows.items())
        if counts.codecs is not None
    ]
    if codecs:
        document["codecs"] = codecs
    if event.quarantined:
        document["quarantined"] = sorted(event.quarantined.items())
    if event.lost_offsets:
        document["lost_offsets"] = event.lost_offsets
    return json.dumps(document, separators=(",", ":")).encode()


def decode_audit_event(value: bytes) -> AuditEvent:
    """Return the event in a record's value. Raises AuditMessageError."""
    try:
        document = json.loads(value)
        if document["version"] != MESSAGE_VERSION:
            raise AuditMessageError(f"monitoring event of version {document['version']}; expected {MESSAGE_VERSION}")
        codecs = {
            int(start): CodecCounts(int(header_sum), tuple(map(int, batches)))
            for start, header_sum, *batches in document.get("codecs", ())  # older programs do not count them
            if len(batches) == len(Codec)
        }
        return AuditEvent(
            source=AuditSource(
                tier=Tier(document["tier"]),
                cluster=str(document["cluster"]),
                partition=TopicPartition(str(document["topic"]), int(document["partition"])),
                instance=str(document["instance"]),
            ),
            leader_epoch=int(document["leader_epoch"]),
            claims=tuple(EpochClaim(int(epoch), int(start_offset)) for epoch, start_offset in document["claims"]),
            revision=int(document["revision"]),
            created_ms=int(document["created_ms"]),
            window_ms=int(document["window_ms"]),
            windows={
                int(start): Counts(int(records), int(size), int(batches), int(crc_sum), codecs.get(int(start)))
                for start, records, size, batches, crc_sum in document["windows"]
            },
            quarantined={int(start): int(records) for start, records in document.get("quarantined", ())},
            lost_offsets=int(document.get("lost_offsets", 0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise AuditMessageError(f"not a monitoring event: {error!r}") from error
