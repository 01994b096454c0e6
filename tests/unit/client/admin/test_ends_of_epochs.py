"""Where leader epochs end in the logs of the leaders."""

import pytest
import trio
import trio.lowlevel

from pipeline.client.admin.leader_epochs import NO_EPOCH_END, EpochEnd, ends_of_epochs
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.conftest import OpenCluster

DEADLINE_S = 60
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def two_leaders(scripted: ScriptedCluster) -> ScriptedCluster:
    """Partition 0 is led by broker 1 and has ten records of epoch 0 and of epoch 3; partition 1 is empty."""
    scripted.add_topic("t", [1, 2])
    scripted.partition(T0).append_values([b"value"] * 10)
    scripted.partition(T0).epoch = 3
    scripted.partition(T0).append_values([b"value"] * 10)
    return scripted


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, EpochEnd(leader_epoch=0, end_offset=10)),
        (2, EpochEnd(leader_epoch=0, end_offset=10)),
        (3, EpochEnd(leader_epoch=3, end_offset=20)),
        (4, NO_EPOCH_END),
    ],
)
async def test_each_leader_names_the_end_of_the_epoch(
    two_leaders: ScriptedCluster, connect: OpenCluster, epoch: int, expected: EpochEnd
) -> None:
    async with two_leaders.broker(1), two_leaders.broker(2), connect() as cluster:
        found = await ends_of_epochs(cluster, {T0: epoch, T1: 0}, timeout_s=DEADLINE_S)
    assert found == {T0: expected, T1: EpochEnd(leader_epoch=0, end_offset=0)}


async def test_a_leader_in_another_epoch_does_not_answer(two_leaders: ScriptedCluster, connect: OpenCluster) -> None:
    two_leaders.lagging[BrokerId(1)] = {"t": {0: Partition(BrokerId(1))}}
    found = {}

    async def ask(cluster: Cluster) -> None:
        found.update(await ends_of_epochs(cluster, {T0: 3}, timeout_s=DEADLINE_S))

    async with two_leaders.broker(2), two_leaders.broker(1), connect() as cluster:
        cluster.track(["t"])
        with trio.fail_after(DEADLINE_S):
            while cluster.view.leader_epoch_of(T0) != 3:
                await cluster.refresh()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, cluster)
                while two_leaders.requests["OffsetForLeaderEpochRequest"] < 3:
                    await trio.lowlevel.checkpoint()
                assert not found
                two_leaders.lagging.clear()
    assert found == {T0: EpochEnd(leader_epoch=3, end_offset=20)}


async def test_a_broker_without_the_request_is_an_error(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    async with scripted.broker(1, versions={OffsetForLeaderEpochRequest.API_KEY: 1}), connect() as cluster:
        with pytest.raises(KafkaError) as caught:
            await ends_of_epochs(cluster, {T0: 0}, timeout_s=DEADLINE_S)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
