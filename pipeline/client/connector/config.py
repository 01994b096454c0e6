"""Settings of a `ConsumerConnector`. Pure.

Fields bear Kafka's names with `_` for `.`, and are checked as those of the other clients.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from pipeline.client.cluster.config import (
    MAX_TIMEOUT_MS,
    Between,
    ConsumerConfig,
    OffsetReset,
    require_kinds,
)
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.errors import ConfigurationError

OLD_RESETS = {"smallest": OffsetReset.EARLIEST, "largest": OffsetReset.LATEST}
"""Kafka's words up to 0.8."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig(ConsumerConfig):
    """Settings of a member of a group by ZooKeeper. Those of ConsumerConfig are settings of each of its streams."""

    group_id: str
    """Name of the group: letters, digits, `.`, `_` and `-`, at most 200."""
    consumer_id: str | None = None
    """Name of this member in the group, in the same letters. None: host, time and random digits."""
    zookeeper_session_timeout_ms: Annotated[int, Between(100, 600_000)] = 6_000
    """Time in ms after which the group takes over the partitions of a member that ZooKeeper does not hear of. The
    server has bounds of its own, usually 4,000 to 40,000."""
    zookeeper_connection_timeout_ms: Annotated[int, Between(1, MAX_TIMEOUT_MS)] = 30_000
    """Time in ms to wait for ZooKeeper at the start."""
    zookeeper_security: ZooKeeperSecurity = OPEN_ZOOKEEPER
    """TLS and authentication of the connection to ZooKeeper: `ZooKeeperSecurity.from_settings({...})`, see
    docs/security/zookeeper.md."""
    rebalance_backoff_ms: Annotated[int, Between(1, 600_000)] = 2_000
    """Longest time in ms to wait for the owner of a partition before the next try to claim it."""
    rebalance_max_retries: Annotated[int, Between(1, 1_000_000)] = 4
    """Tries to claim all partitions of a share, before an error is logged. The member goes on trying."""
    auto_commit_enable: bool = True
    """True if the offsets of finished items are stored at intervals, and when partitions are given up."""
    auto_commit_interval_ms: Annotated[int, Between(1, MAX_TIMEOUT_MS)] = 5_000
    """Interval in ms of automatic commits."""
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    """Offset at which a partition begins that has no stored offset, or whose stored offset is no longer in the log:
    `earliest` (formerly `smallest`) or `latest` (formerly `largest`). With `none` the former begins at its start, and
    the stream of the latter raises PartitionOffsetOutOfRangeError. A partition that appears while the member runs
    begins at its start."""
    max_poll_interval_ms: Annotated[int, Between(1, MAX_TIMEOUT_MS)] = 300_000
    """Time in ms for which a partition that another member is to have waits until the reader has finished its item.
    The other member is handed the item again then."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        reset = OLD_RESETS.get(str(self.auto_offset_reset), self.auto_offset_reset)
        object.__setattr__(self, "auto_offset_reset", reset)
        ConsumerConfig.__post_init__(self)
        require_kinds(self, {"auto_commit_enable": bool, "zookeeper_security": ZooKeeperSecurity})
        _check_name("group.id", self.group_id)
        if self.consumer_id is not None:
            _check_name("consumer.id", self.consumer_id)


def _check_name(key: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigurationError(key, f"is {name!r}, must be 1 to 200 letters, digits, '.', '_' or '-'")
