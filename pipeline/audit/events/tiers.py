"""Tiers: the steps at which batches are counted. Pure."""

from dataclasses import dataclass
from enum import StrEnum

AUDIT_TOPIC = "_audit"


def is_audited(topic: str) -> bool:
    """True if batches of the topic are counted. Internal topics (`_...`) are not: each report would cause another."""
    return not topic.startswith("_")


class Tier(StrEnum):
    """A step on the way of a batch at which batches are counted."""

    PRODUCER = "producer"
    BROKER = "broker"
    MIRROR = "mirror"
    GROUP = "group"
    LOAD = "load"
    STORED = "stored"
    """Files of a load, read back from the file system."""

    @property
    def has_lives(self) -> bool:
        """True if each process counts for itself, so that the counts of all lives add up."""
        return self in (Tier.PRODUCER, Tier.MIRROR, Tier.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter of batches: a tier of a cluster, and its name if the cluster has several of the tier.

    `name` is the group id of a consumer group and the root of a load; empty for the other tiers. `instance` is the id
    of a life of a producer, mirror or member of a group, and empty for the others: replicas of a partition continue
    each other's counts, and so do the runs of a load.
    """

    tier: Tier
    cluster: str
    name: str = ""
    instance: str = ""
