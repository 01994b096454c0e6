"""Settings that a replica topic takes from its source topics. Pure.

Invariant: in doubt a replica keeps more than its sources. A replica of several sources deletes and compacts only what
each of them would delete or compact.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CLEANUP_POLICY = "cleanup.policy"
RETENTION = ("retention.ms", "retention.bytes")
DELETING = (CLEANUP_POLICY, *RETENTION)
"""Settings by which a topic loses records."""
TIMESTAMP_TYPE = "message.timestamp.type"
FOLLOWED_SETTINGS = (
    *DELETING,
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "max.message.bytes",
    TIMESTAMP_TYPE,
    "segment.bytes",
    "segment.ms",
)
"""Default of `topic.settings`."""
UNLIMITED = "-1"
_NAME = re.compile(r"[a-z0-9.]{1,100}")


def check_followed(names: Sequence[str]) -> None:
    """Check the setting `topic.settings`. Raises ValueError."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"topic.settings has {name!a}, which is no name of a topic setting")
        if name.startswith("mirror.") or name.endswith(".replication.throttled.replicas"):
            raise ValueError(f"topic.settings has {name}, which has a meaning in its own cluster alone; remove it")


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A value in effect; `is_own` is True if the topic itself sets it."""

    value: str
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShare:
    """Settings of one source of a replica, as last known.

    `has_topic` is False if the source has deleted the topic. Its records in the replica remain, so the share counts for
    deletion and compaction alone.
    """

    source: str
    values: Mapping[str, SettingValue]
    has_topic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedSettings:
    """Settings of a replica, and the words for what its sources differ in."""

    values: Mapping[str, str]
    differences: tuple[str, ...] = ()


def combine_settings(shares: Sequence[TopicShare], names: Sequence[str]) -> CombinedSettings | None:
    """Return the settings of a replica whose sources have these shares, in the order of the settings file.

    None if no source has the topic: then the replica keeps what it has.
    """
    first = next((share for share in shares if share.has_topic), None)
    if first is None:
        return None
    values = {name: first.values[name].value for name in names if name in first.values and first.values[name].is_own}
    differences: list[str] = []
    for name in RETENTION:
        if name in names:
            _combine(name, max(_values(shares, name), key=_retention, default=None), shares, values, differences)
    if CLEANUP_POLICY in names:
        policy = _policy(_values(shares, CLEANUP_POLICY))
        _combine(CLEANUP_POLICY, policy or "delete", shares, values, differences)
        if policy is None and CLEANUP_POLICY in values:
            values |= dict.fromkeys(RETENTION, UNLIMITED)
            differences.append("the replica keeps all records, because one source compacts and another one deletes")
    return CombinedSettings(values=values, differences=tuple(differences))


def _combine(
    name: str, joint: str | None, shares: Sequence[TopicShare], values: dict[str, str], differences: list[str]
) -> None:
    """Set the joint value if a source sets the setting at all, and note values that differ."""
    found = [(share.source, share.values[name]) for share in shares if name in share.values]
    if joint is None or not any(value.is_own for _, value in found):
        return
    values[name] = joint
    if len({value.value for _, value in found}) > 1:
        each = ", ".join(f"{value.value} in {source}" for source, value in found)
        differences.append(f"{name} is {each}; the replica has {joint}")


def _values(shares: Sequence[TopicShare], name: str) -> list[str]:
    return [share.values[name].value for share in shares if name in share.values]


def _retention(value: str) -> float:
    try:
        return float("inf") if int(value) < 0 else int(value)
    except ValueError:
        return float("inf")


def _policy(policies: Sequence[str]) -> str | None:
    """Return the policy that loses nothing that a source keeps; None if only keeping everything does."""
    if len(set(policies)) <= 1:
        return next(iter(policies), "delete")
    compact = all("compact" in policy for policy in policies)
    delete = all("delete" in policy for policy in policies)
    if not compact and not delete:
        return None
    return ",".join(name for name, is_common in (("compact", compact), ("delete", delete)) if is_common)
