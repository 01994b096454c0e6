"""Three brokers and a fault: nothing that was acknowledged is lost or doubled, the group reads all of it.

The whole matrix, and the longest stops beside Apache Kafka's, are in `make test-faults`.
"""

from pathlib import Path

import pytest

from tests.support.cluster.faults import Fault, Role, Scenario
from tests.support.cluster.rolling import restart_all
from tests.support.cluster.run import run_scenarios
from tests.support.cluster.systems import OURS, local_places, our_cluster, with_warnings

SESSION_TIMEOUT_MS = 3000
HOLD_S = 5.0
QUICK_GROUPS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 10}
PAUSED = Scenario(fault=Fault.PAUSE, role=Role.LEADER)
OTHERS = [
    Scenario(fault=Fault.STOP, role=Role.LEADER),
    Scenario(fault=Fault.KILL, role=Role.CONTROLLER),
    Scenario(fault=Fault.CUT_SENDING, role=Role.COORDINATOR),
]
LONGEST_STOP_S = 90.0
"""Of writing; several session timeouts and what a busy machine adds."""


@pytest.mark.long
@pytest.mark.parametrize(
    "scenarios",
    [pytest.param([PAUSED], id="a paused leader"), pytest.param(OTHERS, id="others")],
)
def test_faults_lose_and_double_nothing(tmp_path: Path, scenarios: list[Scenario]) -> None:
    outcomes = list(
        run_scenarios(
            OURS, scenarios, tmp_path, hold_s=HOLD_S, session_timeout_ms=SESSION_TIMEOUT_MS, settings=QUICK_GROUPS
        )
    )
    assert {outcome.name: outcome.faults for outcome in outcomes} == {each.name: [] for each in scenarios}
    for outcome in outcomes:
        assert outcome.verdict is not None
        again = outcome.verdict.sent_again
        print(f"{outcome.name}: no acknowledged write for {outcome.verdict.longest_stop_s:.1f} s, {again} sent again")
        assert outcome.verdict.longest_stop_s < LONGEST_STOP_S


def test_no_error_reaches_clients_while_every_broker_is_restarted(tmp_path: Path) -> None:
    with with_warnings(tmp_path), our_cluster(tmp_path, local_places(3), QUICK_GROUPS) as cluster:
        cluster.start()
        done = restart_all(cluster, topics=4, partitions=6, replicas=3, records_per_s=500)
        assert done.verdict.faults == []
    print(f"{done.verdict.sent_again} records sent again by the client in a newer epoch")
    assert done.verdict.acknowledged > 0
