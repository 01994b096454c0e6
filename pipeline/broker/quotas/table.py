"""Finds the quota of a client, and the clients that share it. Pure.

Order of precedence, the most specific first (Kafka 0.10 design, 4.9):

    1  /config/users/<user>/clients/<client-id>          5  /config/users/<default>/clients/<default>
    2  /config/users/<user>/clients/<default>            6  /config/users/<default>
    3  /config/users/<user>                              7  /config/clients/<client-id>
    4  /config/users/<default>/clients/<client-id>       8  /config/clients/<default>

and then the broker's own `quota.producer.default` and `quota.consumer.default`, by client id. A default gives each user
or client id its own quota, not one quota to all of them together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pipeline.coordination.quota_znodes import DEFAULT, QuotaEntity

MIN_QUOTA = 1.0
MAX_QUOTA = 2.0**62
"""Bounds in bytes per second. Quotas beyond them, written by other tools, count as the bound."""


class QuotaKind(Enum):
    """Kinds of quotas, by their names in ZooKeeper and in AlterClientQuotas."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"


class Quota(NamedTuple):
    """The quota of one client. All clients with the same `sharer` (user, client id) share it."""

    bytes_per_s: float
    sharer: tuple[str | None, str | None]


@dataclass(slots=True)
class QuotaTable:
    """All quotas. `broker_defaults` hold by client id where no other quota does."""

    broker_defaults: Mapping[QuotaKind, float | None]
    followed: int = 0
    """Number of entities whose znodes are watched, with or without quotas."""
    entities: dict[QuotaEntity, Mapping[QuotaKind, float]] = field(default_factory=dict)
    """Quotas by entity."""

    @property
    def is_empty(self) -> bool:
        """True if no client has a quota."""
        return not self.entities and not any(self.broker_defaults.values())

    def set(self, entity: QuotaEntity, quotas: Mapping[QuotaKind, float]) -> None:
        """Set the quotas of an entity, or remove them if `quotas` is empty."""
        if quotas:
            self.entities[entity] = quotas
        else:
            self.entities.pop(entity, None)

    def find(self, kind: QuotaKind, user: str, client_id: str) -> Quota | None:
        """Return the quota of a client; None if it has none."""
        both, user_alone, client_alone = (user, client_id), (user, None), (None, client_id)
        for entity, sharer in (
            (QuotaEntity(user=user, client_id=client_id), both),
            (QuotaEntity(user=user, client_id=DEFAULT), both),
            (QuotaEntity(user=user), user_alone),
            (QuotaEntity(user=DEFAULT, client_id=client_id), both),
            (QuotaEntity(user=DEFAULT, client_id=DEFAULT), both),
            (QuotaEntity(user=DEFAULT), user_alone),
            (QuotaEntity(client_id=client_id), client_alone),
            (QuotaEntity(client_id=DEFAULT), client_alone),
        ):
            limit = self.entities.get(entity, {}).get(kind)
            if limit is not None:
                return Quota(limit, sharer)
        limit = self.broker_defaults.get(kind)
        return None if limit is None else Quota(limit, client_alone)


def parse_quota(text: str) -> float:
    """Parse a quota in ZooKeeper, bounded to MIN_QUOTA and MAX_QUOTA. Raises ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"a quota must be greater than 0, not {text}")
    return min(max(value, MIN_QUOTA), MAX_QUOTA)
