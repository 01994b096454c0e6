"""Groups in which members of ours, of the Java client and of confluent-kafka share the partitions."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_groups import SESSION_MS, Watched
from tests.support.clients import RunningClient, running_client
from tests.support.kafka import java_with_compiler

PROGRAMS = {"ours": "our_group", "java": "java_group", "confluent-kafka": "confluent_group"}
ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
KINDS = dict.fromkeys(ASSIGNORS, ("ours", "java", "confluent-kafka")) | {"sticky": ("ours", "java", "java")}
"""confluent-kafka has no eager sticky assignor."""
GROUP_MEMBER = Path(__file__).parents[1] / "support" / "GroupMember.java"


class MixedGroup(Watched):
    """A topic of its own, and a group of members of several kinds that reads it."""

    def __init__(self, bootstrap: str, strategy: str, stack: ExitStack) -> None:
        super().__init__(bootstrap, "mixed", strategy, stack)
        self.members: list[RunningClient] = []

    def enter(self, kind: str) -> None:
        asked: dict[str, Any] = {
            "group": self.name,
            "topic": self.name,
            "instance": None,
            "strategy": self.strategy,
            "session_ms": SESSION_MS,
        }
        if kind == "java":
            asked |= {
                "java": [*java_with_compiler(), str(GROUP_MEMBER), "GroupMember"],
                "assignor": f"org.apache.kafka.clients.consumer.{ASSIGNORS[self.strategy]}",
            }
        self.members.append(self.stack.enter_context(running_client(PROGRAMS[kind], "member", self.bootstrap, asked)))


def take_turns(bootstrap: str, strategy: str, kinds: Sequence[str]) -> None:
    """The first to come leads. It leaves again, and another one leads."""
    with ExitStack() as stack:
        group = MixedGroup(bootstrap, strategy, stack)
        group.enter(kinds[0])
        group.wait_for_sizes(6)
        written = group.produce(0, 60)
        group.total = 60
        group.wait_until_read()
        for kind in kinds[1:]:
            group.enter(kind)
        group.wait_for_sizes(2, 2, 2)
        written |= group.produce(60, 60)
        group.total = 120
        group.wait_until_read()
        read = group.members[0].stop()["values"]
        group.wait_for_sizes(3, 3)
        written |= group.produce(120, 60)
        group.total = 180
        group.wait_until_read()
        group.enter(kinds[0])
        group.wait_for_sizes(2, 2, 2)
        written |= group.produce(180, 60)
        group.total = 240
        group.wait_until_read()
        for member in group.members[1:]:
            read += member.stop()["values"]
        assert set(read) == written
        assert len(read) == len(written)


@pytest.mark.long
def test_members_of_three_clients_share_a_group(our_broker: str) -> None:
    take_turns(our_broker, "cooperative-sticky", KINDS["cooperative-sticky"])


def turned(kinds: Sequence[str], first: str) -> list[str]:
    return [first, *(kind for number, kind in enumerate(kinds) if number != kinds.index(first))]


@pytest.mark.long
@pytest.mark.parametrize("broker", ["our_broker", "apache_kafka"])
def test_members_share_a_group_by_each_assignor_whoever_leads(broker: str, request: pytest.FixtureRequest) -> None:
    bootstrap = request.getfixturevalue(broker)
    cases = [(strategy, turned(kinds, first)) for strategy, kinds in KINDS.items() for first in dict.fromkeys(kinds)]
    with ThreadPoolExecutor(4) as threads:
        futures: dict[str, Any] = {
            f"{strategy}: {', '.join(kinds)}": threads.submit(take_turns, bootstrap, strategy, kinds)
            for strategy, kinds in cases
        }
        assert {name: error for name, future in futures.items() if (error := future.exception()) is not None} == {}
