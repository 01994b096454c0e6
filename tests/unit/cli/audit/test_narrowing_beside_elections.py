"""A narrowing while the brokers whose logs it compares are stopped and others lead: the difference, or a reason."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from pipeline.audit.judgement.verdicts import Finding, Status
from pipeline.audit.narrowing.narrower import Narrower, NarrowLimits
from pipeline.cli.audit.log_access import BrokerLogs
from pipeline.client.admin.topics import NewTopic, create_topics
from tests.support.brokers import Brokers, replicated_cluster, serving_cluster
from tests.support.mirrors import CLICKS, make, put
from tests.unit.cli.audit.test_narrowing import batches, change_a_value, edited, finding, told

DEADLINE_S = 60
EXPECTED = [("changed", 22, 22, 0)]


async def move_leaders(brokers: Brokers) -> None:
    """Stop each broker in turn, so that another one leads."""
    while True:
        for broker in (1, 2):
            await brokers.wait_for_isr("clicks", 2)
            await brokers.stop(broker)
            await brokers.wait_until(lambda: brokers.leader("clicks") is not None)
            await brokers.start(broker)


@pytest.mark.long
async def test_leaders_that_move_meanwhile_cause_no_wrong_finding(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path / "east", 2) as brokers, serving_cluster(tmp_path / "hub") as hub:
        east = brokers.cluster
        configs = {"mirror.source": "elsewhere"}
        await create_topics(east, [NewTopic(name="clicks", partitions=1, replication_factor=2, configs=configs)])
        await make(hub, mirror_source="east")
        for cluster, copies in ((east, batches()), (hub, edited(change_a_value))):
            for each in copies:
                await put(cluster, each, CLICKS)
        narrower = Narrower(BrokerLogs({"east": east, "hub": hub}, "hub", None), "hub", NarrowLimits(timeout_s=5))
        moves = 0
        results: list[Sequence[Finding]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move_leaders, brokers)
            with trio.fail_after(DEADLINE_S):
                while moves < 3 or len(results) < 10:
                    before = brokers._lives
                    results.append(await narrower.narrow(finding()))
                    moves += brokers._lives != before
            nursery.cancel_scope.cancel()
        for found in results:
            said = [each for each in found if each.witness is None]
            assert told(said) in ([], EXPECTED), found
            assert all(each.status is Status.UNKNOWN for each in found if each.witness is not None)
            assert not any("equal now" in each.text for each in found)
        assert any(told(found) == EXPECTED for found in results)
