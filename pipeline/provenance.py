"""Provenance of replica partitions: which partition of which cluster each one is a copy of. Pure.

The topic setting `mirror.partitions` holds the provenance of a topic as JSON: a list of ranges, in which `count` source
partitions from `first` on are the replica partitions from `at` on.

    [{"source":"east","topic":"clicks","topic_id":"...","path":["<id of east>"],"first":0,"count":64,"at":0},
     {"first":64,"count":8,"at":72}]

A range without `source`, `topic`, `topic_id` or `path` has those of the range before, so that a topic that grows often
stays within MAX_TEXT_BYTES. `path` names the clusters by id that the records passed, from the origin to the source.
Unknown fields are ignored.

Invariants:
A. A replica partition is a copy of one source partition, and a source partition has one replica partition.
B. An entry never changes: `with_partition` and brokers add entries, and refuse another origin of a replica partition.
C. No path names a cluster twice: records that come back to a cluster are a loop of mirrors.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import UUID

from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition

MIRROR_PARTITIONS = "mirror.partitions"
"""The topic setting that holds the provenance."""
MAX_PARTITIONS = 100_000
MAX_PATH_CLUSTERS = 16
MAX_TEXT_BYTES = 32_767
"""Kafka's protocol carries no longer strings, so no client could write or read a longer setting."""
MAX_SOURCE_PARTITION = 2**31 - 1
MAX_NAME_LENGTH = 249
"""Kafka's bound for names of topics, here for names and ids of clusters as well."""
_ADVICE = f"Compare the partition table of the mirror with the setting {MIRROR_PARTITIONS}."
_INHERITED = ("source", "topic", "topic_id", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source partition of a replica partition.

    `source` is the name of the source cluster in the settings of the mirror, and may change; `path` holds ids of
    clusters, from the origin of the records to the source cluster. `topic_id` is zero if the source has no topic ids.
    """

    source: str
    path: tuple[str, ...]
    topic: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        """Return the name for users, `east/clicks-0`."""
        return f"{self.source}/{self.topic}-{self.partition}"

    @property
    def cluster(self) -> str:
        """The id of the source cluster."""
        return self.path[-1]

    def token(self) -> str:
        """Return the text by which a Produce request names the source partition of its batches."""
        return f"{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}"


@dataclass(frozen=True, kw_only=True)
class CopiedRange:
    """Replica partitions `at` to `at + count - 1`, copies of as many source partitions from `origin` on."""

    origin: Origin
    at: int
    count: int

    @property
    def end(self) -> int:
        """The replica partition after the last of the range."""
        return self.at + self.count

    def origin_of(self, replica_partition: int) -> Origin:
        """Return the source partition of a replica partition of this range."""
        return replace(self.origin, partition=self.origin.partition + replica_partition - self.at)

    def token_of(self, replica_partition: int) -> str:
        """Return `Origin.token` of the source partition. Quick, for brokers that compare it often."""
        return f"{self._token_start}{self.origin.partition + replica_partition - self.at}"

    def continues(self, before: "CopiedRange") -> bool:
        """True if this range and the one before are a single range."""
        follows = self.origin.partition == before.origin.partition + before.count
        return before.end == self.at and follows and self.origin == before.origin_of(before.end)

    @cached_property
    def _token_start(self) -> str:
        return self.origin.token().removesuffix(str(self.origin.partition))


@dataclass(frozen=True)
class Provenance:
    """Origins of the replica partitions of a topic, as ranges in the order of replica partitions."""

    ranges: tuple[CopiedRange, ...] = ()

    @staticmethod
    def parse(text: str) -> "Provenance":
        """Return the provenance in this text. Raises ConfigurationError."""
        if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
            raise _refusal(f"is longer than {MAX_TEXT_BYTES} bytes")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refusal("is not JSON") from error
        if not isinstance(document, list):
            raise _refusal("is not a list of ranges of partitions")
        ranges: list[CopiedRange] = []
        inherited: dict[str, Any] = {}
        for number, fields in enumerate(document):
            if not isinstance(fields, dict):
                raise _refusal(f"entry {number} is not an object")
            inherited = {name: fields.get(name, inherited.get(name)) for name in _INHERITED}
            ranges.append(_range(number, fields | inherited))
        return _checked(ranges)

    def encode(self) -> str:
        """Return the text of the setting. Raises ConfigurationError if it would be too long."""
        documents = []
        before: dict[str, Any] = {}
        for copied in sorted(self.ranges, key=_by_source):
            origin = copied.origin
            shared = {
                "source": origin.source,
                "topic": origin.topic,
                "topic_id": str(origin.topic_id),
                "path": list(origin.path),
            }
            changed = {name: value for name, value in shared.items() if before.get(name) != value}
            documents.append(changed | {"first": origin.partition, "count": copied.count, "at": copied.at})
            before = shared
        text = json.dumps(documents, separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise _refusal(
                f"would be longer than {MAX_TEXT_BYTES} bytes: the topic has too many ranges of source partitions"
            )
        return text

    def origin_of(self, replica_partition: int) -> Origin | None:
        """Return the source partition of a replica partition; None if the replica partition has no entry."""
        copied = self._range_of(replica_partition)
        return None if copied is None else copied.origin_of(replica_partition)

    def source_of(self, cluster: str) -> str | None:
        """Return the name of a source cluster with this id; None if no partition is a copy of it."""
        return next((copied.origin.source for copied in self.ranges if copied.origin.cluster == cluster), None)

    def refusal_of(self, replica: TopicPartition, token: str) -> str | None:
        """Return the reason why batches from this source partition must not be appended; None if they may.

        `token` is empty if the request does not name the source partition.
        """
        copied = self._range_of(replica.partition)
        if copied is None:
            return (
                f"{MIRROR_PARTITIONS} of {replica.topic} has no entry for partition {replica.partition}: its entry is "
                "missing, and must say whose copy the partition is before a mirror may write here."
            )
        if token == copied.token_of(replica.partition):
            return None
        origin = copied.origin_of(replica.partition)
        if not token:
            return (
                f"{replica} is a copy of {origin}, and the request does not name its source: "
                "the mirror that writes here is older than the broker. Upgrade the mirror."
            )
        return f"{replica} is a copy of {origin}, not of {self._name_of(token, origin)}. {_ADVICE}"

    def _name_of(self, token: str, origin: Origin) -> str:
        """Return the words for a source partition that is not this origin."""
        cluster, *rest = token.rsplit("/", 3)
        if len(rest) < 3:
            return repr(token)
        topic, topic_id, partition = rest
        if (cluster, topic, partition) == (origin.cluster, origin.topic, str(origin.partition)):
            return f"another topic of this name: its topic id is {topic_id}, that of the copy {origin.topic_id}"
        return f"{self.source_of(cluster) or cluster}/{topic}-{partition}"

    def with_partition(self, replica_partition: int, origin: Origin) -> "Provenance":
        """Return the provenance with one more entry.

        Raises ConfigurationError if the replica partition has another origin, or the origin another replica partition.
        """
        known = self.origin_of(replica_partition)
        if known == origin:
            return self
        if known is not None:
            raise _refusal(f"replica partition {replica_partition} is a copy of {known}, and cannot be one of {origin}")
        return _checked([*self.ranges, CopiedRange(origin=origin, at=replica_partition, count=1)])

    def changed_since(self, before: "Provenance") -> int | None:
        """Return a replica partition whose entry is gone or names another source partition; None if there is none."""
        for copied in before.ranges:
            at = copied.at
            while at < copied.end:
                now = self._range_of(at)
                if now is None or now.token_of(at) != copied.token_of(at):
                    return at
                at = now.end
        return None

    def _range_of(self, replica_partition: int) -> CopiedRange | None:
        index = bisect_right(self._starts, replica_partition) - 1
        is_within = index >= 0 and replica_partition < self.ranges[index].end
        return self.ranges[index] if is_within else None

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [copied.at for copied in self.ranges]


def _refusal(reason: str) -> ConfigurationError:
    return ConfigurationError(MIRROR_PARTITIONS, reason)


def _by_source(copied: CopiedRange) -> tuple[str, str, UUID, tuple[str, ...], int]:
    origin = copied.origin
    return origin.source, origin.topic, origin.topic_id, origin.path, origin.partition


def _by_topic(copied: CopiedRange) -> tuple[tuple[str, str, UUID], int]:
    origin = copied.origin
    return (origin.cluster, origin.topic, origin.topic_id), origin.partition


def _checked(ranges: Sequence[CopiedRange]) -> Provenance:
    """Return the provenance of these ranges, merged. Raises ConfigurationError if they break an invariant or bound."""
    for copied in ranges:
        _check_range(copied)
    merged: list[CopiedRange] = []
    for copied in sorted(ranges, key=lambda copied: copied.at):
        if merged and copied.at < merged[-1].end:  # invariant A
            raise _refusal(f"replica partition {copied.at} has two entries")
        if merged and copied.continues(merged[-1]):
            merged[-1] = replace(merged[-1], count=merged[-1].count + copied.count)
        else:
            merged.append(copied)
    for before, after in pairwise(sorted(merged, key=_by_topic)):
        (topic, first), (topic_after, first_after) = _by_topic(before), _by_topic(after)
        if topic == topic_after and first_after < first + before.count:  # invariant A
            raise _refusal(f"{after.origin} has two replica partitions, in {before.at} and {after.at}")
    return Provenance(tuple(merged))


def _check_range(copied: CopiedRange) -> None:
    origin = copied.origin
    if copied.count < 1 or copied.at < 0 or copied.end > MAX_PARTITIONS:
        raise _refusal(f"the range of {copied.count} replica partitions at {copied.at} is outside of {MAX_PARTITIONS}")
    if origin.partition < 0 or origin.partition + copied.count - 1 > MAX_SOURCE_PARTITION:
        raise _refusal(f"the range at {copied.at} has source partitions outside of 0 to {MAX_SOURCE_PARTITION}")
    if not 1 <= len(origin.path) <= MAX_PATH_CLUSTERS:
        raise _refusal(f"the path of the range at {copied.at} must have 1 to {MAX_PATH_CLUSTERS} clusters")
    for name in (origin.source, origin.topic, *origin.path):
        if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()):
            reason = f"an empty, unprintable or overlong name; at most {MAX_NAME_LENGTH} characters are allowed"
            raise _refusal(f"the range at {copied.at} has {reason}")
    if "/" in origin.topic:
        raise _refusal(f"the topic of the range at {copied.at} is no name of a topic")
    if len(set(origin.path)) < len(origin.path):  # invariant C
        raise _refusal(f"the path of the range at {copied.at} names a cluster twice: a loop of mirrors")


def _range(number: int, fields: dict[str, Any]) -> CopiedRange:
    path = fields["path"]
    if not (isinstance(path, list) and all(isinstance(cluster, str) for cluster in path)):
        raise _refusal(f"`path` of entry {number} is not a list of cluster ids")
    try:
        topic_id = UUID(_text(number, fields, "topic_id"))
    except ValueError as error:
        raise _refusal(f"`topic_id` of entry {number} is not a UUID") from error
    origin = Origin(
        source=_text(number, fields, "source"),
        path=tuple(path),
        topic=_text(number, fields, "topic"),
        topic_id=topic_id,
        partition=_integer(number, fields, "first"),
    )
    return CopiedRange(origin=origin, at=_integer(number, fields, "at"), count=_integer(number, fields, "count"))


def _text(number: int, fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _refusal(f"`{name}` of entry {number} is not text")
    return value


def _integer(number: int, fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int:  # not True, which is an int to isinstance
        raise _refusal(f"`{name}` of entry {number} is not a whole number")
    return value
