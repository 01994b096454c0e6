"""Declares the settings of a member of a group, on top of those of its consumers."""

from dataclasses import dataclass
from typing import Annotated

from pipeline.client.cluster.config import (
    MAX_TIMEOUT_MS,
    Between,
    ConsumerConfig,
    OffsetReset,
    Timeout,
    require_kinds,
)
from pipeline.client.group.assignors.strategies import STRATEGIES
from pipeline.errors import ConfigurationError

DEFAULT_STRATEGIES = ("range", "cooperative-sticky")
MAX_NAME = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(ConsumerConfig):
    """Settings of a member of a group. Those of ConsumerConfig are settings of each of its streams."""

    group_id: str
    """Name of the group."""
    group_instance_id: str | None = None
    """Name of this member among those of the group: the member is static (KIP-345). A restart within
    `session_timeout_ms` keeps its partitions, and no other member notices."""
    partition_assignment_strategy: tuple[str, ...] = DEFAULT_STRATEGIES
    """Assignors, the preferred one first: `range`, `roundrobin`, `sticky`, `cooperative-sticky`. The group uses one
    that all members have. Members rebalance incrementally if `cooperative-sticky` is their only assignor."""
    session_timeout_ms: Timeout = 45_000
    """Time in ms after the last heartbeat at which the coordinator gives the member's partitions to others. The broker
    bounds it (`group.min.session.timeout.ms`, `group.max.session.timeout.ms`)."""
    heartbeat_interval_ms: Timeout = 3_000
    """Time in ms between heartbeats, below `session_timeout_ms`. At most a third of it lets two be lost."""
    max_poll_interval_ms: Timeout = 300_000
    """Time in ms that a reader may take for an item. Beyond it the member leaves the group until its readers ask for
    more. Also the rebalance timeout: the time that the coordinator waits for members to join again."""
    enable_auto_commit: bool = True
    """True if the offsets of finished items are committed in the background, and when partitions are given up."""
    auto_commit_interval_ms: Annotated[int, Between(1, MAX_TIMEOUT_MS)] = 5_000
    """Time in ms between commits in the background."""
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    """Offset at which a partition begins for which the group has committed none, or one that is no longer in the log.
    With `OffsetReset.NONE` the streams raise NoCommittedOffsetError in the first case, and in the second what
    ConsumerConfig says."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        ConsumerConfig.__post_init__(self)
        require_kinds(self, {"group_id": str, "enable_auto_commit": bool, "group_instance_id": (str, type(None))})
        if not self.group_id:
            raise ConfigurationError("group.id", "is empty: name the group")
        if self.group_instance_id is not None and not 0 < len(self.group_instance_id) <= MAX_NAME:
            raise ConfigurationError("group.instance.id", f"must have 1 to {MAX_NAME} characters")
        given: tuple[str, ...] | str = self.partition_assignment_strategy
        strategies = (given,) if isinstance(given, str) else tuple(given)
        unknown = [name for name in strategies if name not in STRATEGIES]
        if unknown or not strategies or len(set(strategies)) < len(strategies):
            raise ConfigurationError(
                "partition.assignment.strategy",
                f"is {self.partition_assignment_strategy!r}, must name some of {', '.join(STRATEGIES)}, each once",
            )
        object.__setattr__(self, "partition_assignment_strategy", strategies)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError("heartbeat.interval.ms", "must be below session.timeout.ms")

    @property
    def is_cooperative(self) -> bool:
        """True if members keep their partitions while they join: all assignors are cooperative."""
        return all(STRATEGIES[name].is_cooperative for name in self.partition_assignment_strategy)
