"""What is done to whom: faults of the nodes of a cluster, and what a client saw meanwhile.

The matrix is {fault} x {whose role} x {once, bouncing}. The node with the role is looked for right before each fault;
the partitions that are written to are led by one node, and the roles are kept apart as far as three nodes allow.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count, product

from tests.support.clients import TalkingProcess, talking_process
from tests.support.cluster.client import Asked, Verdict
from tests.support.cluster.network import Network
from tests.support.cluster.observation import (
    OFFSETS_TOPIC,
    Observer,
    coordinator_partition,
    wait_until,
)
from tests.support.cluster.systems import ClusterProcesses

PARTITIONS = 3
BOUNCES = 3
STEADY_S = 1.0
CLIENT_DEADLINE_S = 540


class Fault(StrEnum):
    """What is done to a node."""

    STOP = "clean stop"
    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    CUT_SENDING = "cut, sends nothing"
    CUT_HEARING = "cut, hears nothing"


class Role(StrEnum):
    """Who it is done to."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One of the matrix."""

    fault: Fault
    role: Role
    is_bouncing: bool = False

    @property
    def name(self) -> str:
        return f"{self.fault} of the {self.role}, {f'{BOUNCES} times' if self.is_bouncing else 'once'}"


MATRIX = [
    Scenario(fault=fault, role=role, is_bouncing=is_bouncing)
    for is_bouncing, fault, role in product((False, True), Fault, Role)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a scenario; without a verdict there is an error."""

    name: str
    verdict: Verdict | None = None
    error: str = ""

    @property
    def faults(self) -> list[str]:
        """What is wrong, in words."""
        return [self.error] if self.verdict is None else self.verdict.faults

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        given = json.loads(text)
        verdict = None if given["verdict"] is None else Verdict(**given["verdict"])
        return cls(name=given["name"], verdict=verdict, error=given["error"])


class Client:
    """A running tests.support.cluster.client."""

    def __init__(self, talking: TalkingProcess) -> None:
        self._talking = talking

    def wait_until_steady(self) -> None:
        """Raises RuntimeError with its last words."""
        assert self._talking.process.stdout is not None
        if self._talking.process.stdout.readline() != "steady\n":
            _, err = self._talking.ended(CLIENT_DEADLINE_S)
            raise RuntimeError(f"the client ended: {err}")

    def finish(self) -> Verdict:
        """Tell it to end; what became of its records."""
        out, err = self._talking.ended(CLIENT_DEADLINE_S)
        if self._talking.process.returncode:
            raise RuntimeError(f"the client failed: {err}")
        return Verdict(**json.loads(out.splitlines()[-1]))


@contextmanager
def running_client(asked: Asked) -> Iterator[Client]:
    """A client on this host, killed at the end of the block if it was not finished."""
    with talking_process([sys.executable, "-m", "tests.support.cluster.client", json.dumps(asdict(asked))]) as talking:
        yield Client(talking)


class FaultRunner:
    """Runs scenarios, one after the other, on a cluster of three that is whole before each.

    `hold_s`: how long a node is away, more than the time after which the cluster takes it for dead.
    """

    def __init__(self, cluster: ClusterProcesses, network: Network | None, *, hold_s: float) -> None:
        self._cluster = cluster
        self._network = network
        self._hold_s = hold_s
        self._observer = Observer(cluster)
        self._numbers = count(1)

    def prepare(self) -> None:
        """The topic of offsets is there."""
        topic = "prepare"
        self._observer.create_topic(topic, [list(self._cluster.nodes)])
        asked = Asked(bootstrap=self._cluster.bootstrap, topics=[topic], partitions=1, group=topic)
        with running_client(asked) as client:
            client.wait_until_steady()
            client.finish()
        self._observer.wait_until_in_sync([topic, OFFSETS_TOPIC])

    def run(self, scenario: Scenario) -> Outcome:
        """Raises OSError, RuntimeError or TimeoutError if the cluster is not usable any more."""
        number = next(self._numbers)
        topic = f"faults-{number}"
        controller = self._observer.controller()
        leader, third = [each for each in self._cluster.nodes if each != controller]
        self._observer.create_topic(topic, [[leader, controller, third]] * PARTITIONS)
        is_coordinator_apart = scenario.role in {Role.LEADER, Role.COORDINATOR}
        group = self._group_coordinated_by(third if is_coordinator_apart else leader, number)
        asked = Asked(bootstrap=self._cluster.bootstrap, topics=[topic], partitions=PARTITIONS, group=group)
        with running_client(asked) as client:
            client.wait_until_steady()
            time.sleep(STEADY_S)
            for _ in range(BOUNCES if scenario.is_bouncing else 1):
                self._once(scenario, topic, group)
                self._observer.wait_until_in_sync([topic, OFFSETS_TOPIC])
            time.sleep(STEADY_S)
            return Outcome(name=scenario.name, verdict=client.finish())

    def _once(self, scenario: Scenario, topic: str, group: str) -> None:
        victim = self._victim(scenario.role, topic, group)
        node = self._cluster.nodes[victim]
        match scenario.fault:
            case Fault.STOP | Fault.KILL:
                if scenario.fault is Fault.STOP:
                    node.stop()
                else:
                    node.kill()
                if not scenario.is_bouncing:
                    time.sleep(self._hold_s)
                node.launch()
                node.wait_for_port()
            case Fault.PAUSE:
                node.pause()
                time.sleep(self._hold_s)
                node.resume()
            case Fault.CUT_SENDING | Fault.CUT_HEARING:
                assert self._network is not None
                if scenario.fault is Fault.CUT_SENDING:
                    self._network.cut_sending(victim)
                else:
                    self._network.cut_hearing(victim)
                time.sleep(self._hold_s)
                self._network.heal(victim)

    def _victim(self, role: Role, topic: str, group: str) -> int:
        leader = self._observer.leader(topic)
        match role:
            case Role.LEADER:
                return leader
            case Role.CONTROLLER:
                return self._observer.controller()
            case Role.COORDINATOR:
                coordinators = self._observer.coordinators()
                return coordinators[coordinator_partition(group, len(coordinators))]
            case Role.FOLLOWER:
                controller = self._observer.controller()
                return next(each for each in reversed(self._cluster.nodes) if each not in {leader, controller})

    def _group_coordinated_by(self, node: int, number: int) -> str:
        coordinators: dict[int, int] = {}

        def is_among_coordinators() -> bool:
            nonlocal coordinators
            self._observer.elect_preferred()
            coordinators = self._observer.coordinators()
            return node in coordinators.values()

        wait_until(f"broker {node} leads a partition of {OFFSETS_TOPIC}", is_among_coordinators)
        for attempt in range(1000):
            group = f"readers-{number}-{attempt}"
            if coordinators[coordinator_partition(group, len(coordinators))] == node:
                return group
        raise RuntimeError(f"broker {node} coordinates none of 1000 groups: {coordinators}")


def by_name(names: Sequence[str]) -> list[Scenario]:
    """Scenarios of the matrix, in the order of `names`."""
    known = {scenario.name: scenario for scenario in MATRIX}
    return [known[name] for name in names]
