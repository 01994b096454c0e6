"""Committed offsets of groups at the clusters of a mirror's test, and the status of their copies."""

from collections.abc import Mapping
from typing import Any

import trio

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from tests.support.mirrors import DEADLINE_S

COPYING: Mapping[str, Any] = {"group_offsets_enabled": True, "group_offsets_interval_ms": 100}


async def commit(cluster: Cluster, group: str, offset: int, *, partition: int = 0, metadata: str = "") -> None:
    committed = CommittedOffset(offset=offset, metadata=metadata)
    await commit_offsets(cluster, group, {TopicPartition("clicks", partition): committed}, timeout_s=DEADLINE_S)


async def committed_offsets(cluster: Cluster, group: str) -> dict[int, int]:
    """The offsets of a group in `clicks`, by partition."""
    found = await fetch_offsets(cluster, group, timeout_s=DEADLINE_S)
    return {partition: one.offset for (_, partition), one in found.items()}


async def until_committed(cluster: Cluster, group: str, offsets: Mapping[int, int]) -> None:
    found: dict[int, int] = {}
    with trio.move_on_after(DEADLINE_S):
        while found != offsets:
            await trio.sleep(0.02)
            found = await committed_offsets(cluster, group)
    assert found == offsets


def groups_status(service: MirrorService, source: str = "east") -> dict[str, Any]:
    (found,) = (one["groups"] for one in service.status()["sources"] if one["name"] == source)
    assert isinstance(found, dict)
    return found


async def until_left_alone(service: MirrorService, *entries: Mapping[str, Any], source: str = "east") -> None:
    found: Any = None
    with trio.move_on_after(DEADLINE_S):
        while found != list(entries):
            await trio.sleep(0.02)
            found = groups_status(service, source)["left_alone"]
    assert found == list(entries)


async def after_a_round(service: MirrorService, source: str = "east") -> None:
    """Two rounds that end from now on, of which the second began after this call."""
    for _ in range(2):
        before = groups_status(service, source)["age_seconds"]
        with trio.fail_after(DEADLINE_S):
            while before is None or groups_status(service, source)["age_seconds"] >= before:
                before = groups_status(service, source)["age_seconds"]
                await trio.sleep(0.005)
