"""Sites that seeds simulate: clusters, mirrors, faults, and what the faults may destroy."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pipeline.mirror.config import GapPolicy
from pipeline.testing.simulation.plan import Variant

SAFE_SETTINGS: Mapping[str, Any] = {"log.flush.interval.messages": 1}
"""A single broker loses nothing with its power."""
ONE_BROKER_FAULTS = ("kill", "crash", "stop", "pause", "connections", "one way", "clocks", "session")
SAFE_FAULTS = (*ONE_BROKER_FAULTS, "power of one", "full")
LOSING_FAULTS = ("kill", "pause", "connections", "one way", "power of one", "power of one", "power of one")
THREE_BROKER_FAULTS = (
    *("kill", "kill", "crash", "kill all", "stop", "pause", "bounce", "succession", "relapse", "power"),
    *("zookeeper cut", "session", "partition", "one way", "alone", "slow", "connections", "clocks"),
)
UNCLEAN_FAULTS = ("kill", "pause", "partition", "alone", "session", "power of one", "power of all", "kill all")
MIRROR_FAULTS = ("kill", "kill", "pause", "stop", "cut from source", "cut from hub", "late", "connections", "clock")
GROUP_FAULTS = (*MIRROR_FAULTS, "pause", "pause leader", "pause leader", "zookeeper cut", "zookeeper cut", "session")
RECREATED = ("visits", 1)
"""Topic that is deleted and created again, and its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteClusterPlan:
    """A cluster and its faults."""

    brokers: int = 1
    fault_kinds: tuple[str, ...] = SAFE_FAULTS
    loses_records: bool = False
    """True if the cluster may lose acknowledged records: an unclean election, or power that fails before a flush."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the brokers, beside those of all clusters."""
        unsafe = {"unclean.leader.election.enable": True} if self.loses_records else SAFE_SETTINGS
        least = min(self.brokers, 2)
        return {
            "default.replication.factor": self.brokers,
            "min.insync.replicas": least,
            "offsets.topic.replication.factor": self.brokers,
            **(unsafe if self.brokers == 1 or self.loses_records else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlan:
    """Clusters, mirrors, load and faults to simulate."""

    seed: int
    sources: Mapping[str, SiteClusterPlan]
    hub: SiteClusterPlan = SiteClusterPlan()
    mirrors: int = 1
    topics: tuple[tuple[str, int], ...] = (("orders", 2), ("views", 1))
    faults_s: float = 20.0
    gap_policy: GapPolicy = GapPolicy.HALT
    has_deletions: bool = False
    """True if records of the sources are deleted (DeleteRecords) before they must be copied."""
    has_recreations: bool = False
    """True if a topic of each source is deleted and created again."""
    has_pauses: bool = False
    """True if an operator pauses and resumes topics, partitions, flows and sources."""
    is_group: bool = False
    """True if the mirrors share the partitions as a group."""
    recompresses: bool = False
    """True if mirrors may recompress: replicas are compared by contents, and values are long enough to shrink."""
    is_audited: bool = False
    """True if all brokers count, some producers count, and an audit service judges."""
    variant: Variant = nullcontext

    @property
    def mirror_faults(self) -> tuple[str, ...]:
        """Faults of the mirrors."""
        return GROUP_FAULTS if self.is_group else MIRROR_FAULTS

    @property
    def all_topics(self) -> tuple[tuple[str, int], ...]:
        """Topics that are mirrored, with their numbers of partitions."""
        return (*self.topics, RECREATED) if self.has_recreations else self.topics


THREE = SiteClusterPlan(brokers=3, fault_kinds=THREE_BROKER_FAULTS)
LOSING = SiteClusterPlan(fault_kinds=LOSING_FAULTS, loses_records=True)
UNCLEAN = SiteClusterPlan(brokers=2, fault_kinds=UNCLEAN_FAULTS, loses_records=True)
KINDS = 12
"""Kinds of sites; the kind of a seed is its number modulo this."""


def site_plan_for(seed: int) -> SitePlan:
    """Return the site of a seed, one of `KINDS` in turn. In one of five turns mirrors recompress."""
    return replace(_plan_of_kind(seed), recompresses=seed // KINDS % 5 == 1)


def audited_plan_for(seed: int) -> SitePlan:
    """Return the site of a seed with the audit beside it. In one of four turns wall clocks step, too."""
    plan = site_plan_for(seed)
    if seed // KINDS % 4 != 3:
        sources = {name: _without_clock_faults(one) for name, one in plan.sources.items()}
        plan = replace(plan, sources=sources, hub=_without_clock_faults(plan.hub))
    return replace(plan, is_audited=True)


def _without_clock_faults(plan: SiteClusterPlan) -> SiteClusterPlan:
    return replace(plan, fault_kinds=tuple(kind for kind in plan.fault_kinds if kind != "clocks"))


def _plan_of_kind(seed: int) -> SitePlan:
    """Return a site of the seed's kind; gap policy and number of mirrors change from turn to turn.

    A source that loses records has one mirror or a group: a second mirror without a group could append what it fetched
    before the loss, when the first has continued behind the gap.
    """
    turn = seed // KINDS
    policy = GapPolicy.SKIP if turn % 2 else GapPolicy.HALT
    mirrors = 1 + turn % 3 // 2
    is_group = turn % 4 > 1
    one = SiteClusterPlan()
    match seed % KINDS:
        case 0:
            return SitePlan(seed=seed, sources={"east": THREE}, hub=THREE, mirrors=mirrors, gap_policy=policy)
        case 1:
            return SitePlan(seed=seed, sources={"east": LOSING}, gap_policy=policy)
        case 2:
            return SitePlan(seed=seed, sources={"east": one, "west": one}, mirrors=2, gap_policy=policy)
        case 3:
            return SitePlan(seed=seed, sources={"east": one}, hub=LOSING, mirrors=mirrors, gap_policy=policy)
        case 4:
            return SitePlan(seed=seed, sources={"east": THREE}, mirrors=mirrors, gap_policy=policy)
        case 5:
            return SitePlan(
                seed=seed, sources={"east": one}, hub=LOSING, mirrors=2, gap_policy=policy, is_group=is_group
            )
        case 6:
            return SitePlan(seed=seed, sources={"east": one}, mirrors=2, gap_policy=policy, has_deletions=True)
        case 7:
            return SitePlan(seed=seed, sources={"east": UNCLEAN}, gap_policy=policy)
        case 8:
            sources = {"east": one, "west": one}
            return SitePlan(seed=seed, sources=sources, mirrors=3, gap_policy=policy, is_group=True)
        case 9:
            return SitePlan(
                seed=seed,
                sources={"east": THREE if turn % 3 == 0 else one},
                mirrors=2 if is_group else mirrors,
                gap_policy=policy,
                has_recreations=True,
                is_group=is_group,
            )
        case 10:
            return SitePlan(
                seed=seed,
                sources={"east": one},
                mirrors=2 if is_group else mirrors,
                gap_policy=policy,
                has_pauses=True,
                is_group=is_group,
            )
        case _:
            return SitePlan(seed=seed, sources={"east": LOSING}, hub=THREE, mirrors=3, gap_policy=policy, is_group=True)
