"""Changes of the expectations, and the topics that must be judged again for them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.audit.judgement.verdicts import Expectations, OffsetSpan, Route
from pipeline.model import TopicPartition

KeyT = TypeVar("KeyT")
RouteKey = tuple[str, TopicPartition, TopicPartition, str]
"""Cluster, source, replica and id of the source's topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Differences between two expectations.

    `everything`: True if no verdict holds. `topics` are names of topics of which no verdict holds. `witnesses`: True
    if witnesses that many topics need came or went.
    """

    everything: bool = False
    topics: frozenset[str] = frozenset()
    witnesses: bool = False


def changes_between(before: Expectations | None, now: Expectations) -> Changes:
    """Return what has changed. Parts that are the same objects are compared at no cost."""
    if before is None or _clusters(before) != _clusters(now):
        return Changes(everything=True)
    witnesses = {*before.unknown} ^ {*now.unknown}
    topics = {witness.topic for witness in witnesses if witness.topic is not None}
    named = (
        _changed_keys(before.partitions, now.partitions)
        | _changed_keys(before.deleted, now.deleted)
        | (before.compacted ^ now.compacted)
        | _changed_keys(before.copied, now.copied)
    )
    if before.mirrored is not now.mirrored and list(before.mirrored) != list(now.mirrored):
        topics |= {each.topic for each in {*before.mirrored} ^ {*now.mirrored}}
    if before.routes is not now.routes and list(before.routes) != list(now.routes):
        keys = _changed_keys(_by_source(before.routes), _by_source(now.routes))
        topics |= {source.topic for _, source, _, _ in keys}
    topics |= {topic for _, topic in named}
    if named:
        topics |= _sources_of({topic for _, topic in named}, before, now)
    return Changes(
        topics=frozenset(topics),
        witnesses=bool(witnesses) or list(before.losses) != list(now.losses),
    )


def _clusters(expectations: Expectations) -> tuple[object, ...]:
    return tuple(expectations.live_clusters), expectations.replica_cluster, expectations.described


def _changed_keys(before: Mapping[KeyT, object], now: Mapping[KeyT, object]) -> set[KeyT]:
    if before is now or before == now:
        return set()
    return {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}


def _by_source(routes: Iterable[Route]) -> dict[RouteKey, Sequence[OffsetSpan]]:
    return {(each.cluster, each.source, each.replica, each.topic_id): tuple(each.gaps) for each in routes}


def _sources_of(replicas: set[str], before: Expectations, now: Expectations) -> set[str]:
    """Return the topics whose replicas have these names."""
    found = {each.topic for known in (before, now) for each in known.mirrored if each.replica_topic in replicas}
    return found | {
        each.source.topic for known in (before, now) for each in known.routes if each.replica.topic in replicas
    }
