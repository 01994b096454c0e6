"""Placement of a partition's replicas on brokers. Pure.

Kafka's pattern: the preferred leaders go round robin over the brokers from a random start. The distance of the
followers from their leader grows by one with each round, which spreads the followers of one broker's partitions. If the
brokers have racks, brokers of the racks alternate, and a partition has replicas in as many racks as possible (KIP-36).

Invariants: the replicas of a partition are distinct brokers; the numbers of partitions that brokers are preferred
leaders of differ by at most one; the same start and shift give the same places, so that a topic grows in its pattern.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

Assignment = Mapping[int, tuple[BrokerId, ...]]
"""Partition to its replicas, the preferred leader first."""
Racks = Mapping[BrokerId, str | None]
"""The brokers that may get replicas, and their racks."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The place of partition 0: the index of its leader among the brokers, and the distance of its first follower."""

    start: int
    shift: int


def alternate_racks(racks: Racks) -> list[BrokerId]:
    """Return the brokers in the order of their ids; if they have racks, one broker of each rack in turn.

    Raises KafkaError (INVALID_REPLICATION_FACTOR) if some have racks and others none.
    """
    without = [broker for broker, rack in racks.items() if rack is None]
    if len(without) == len(racks):
        return sorted(racks)
    if without:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Not all brokers have rack information for replica rack aware assignment;"
            f" broker.rack is not set for: {', '.join(map(str, sorted(without)))}.",
        )
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for turn in turns for broker in turn if broker is not None]


def check_replication_factor(factor: int, racks: Racks) -> None:
    """Raise KafkaError (INVALID_REPLICATION_FACTOR) unless there are enough brokers."""
    if factor < 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if factor > len(racks):
        reason = f"Replication factor: {factor} larger than available brokers: {len(racks)}."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)


def place_replicas(
    count: int, racks: Racks, *, replication_factor: int, pattern: Pattern, first: int = 0
) -> dict[int, tuple[BrokerId, ...]]:
    """Place the partitions `first` to `first + count - 1`. Raises KafkaError (INVALID_REPLICATION_FACTOR)."""
    check_replication_factor(replication_factor, racks)
    brokers = alternate_racks(racks)
    return {
        index: _replicas(index, brokers, racks, replication_factor, pattern) for index in range(first, first + count)
    }


def find_pattern(current: Assignment, racks: Racks) -> Pattern:
    """Return the pattern of a topic, as far as its partition 0 and the present brokers show it."""
    brokers = alternate_racks(racks)
    replicas = current.get(0, ())
    if not replicas or replicas[0] not in racks:
        return Pattern(0, 0)
    start = brokers.index(replicas[0])
    if len(replicas) <= len(brokers):
        for shift in range(len(brokers)):
            if _replicas(0, brokers, racks, len(replicas), Pattern(start, shift)) == replicas:
                return Pattern(start, shift)
    return Pattern(start, start)


def _replicas(
    index: int, brokers: Sequence[BrokerId], racks: Racks, replication_factor: int, pattern: Pattern
) -> tuple[BrokerId, ...]:
    leader = (index + pattern.start) % len(brokers)
    shift = pattern.shift + index // len(brokers)
    rack_count = len({racks[broker] for broker in brokers})
    is_rack_aware = racks[brokers[0]] is not None
    if is_rack_aware:
        shift *= rack_count
    replicas = [brokers[leader]]
    for step in range((replication_factor - 1) and len(brokers) * rack_count):
        if len(replicas) == replication_factor:
            break
        candidate = brokers[(leader + 1 + (shift + step) % (len(brokers) - 1)) % len(brokers)]
        used_racks = {racks[broker] for broker in replicas}
        is_new_rack = racks[candidate] not in used_racks or len(used_racks) == rack_count
        if candidate not in replicas and (is_new_rack or not is_rack_aware):
            replicas.append(candidate)
    return tuple(replicas)
