"""The rules of recompressed batches, mirror groups and pauses, on made-up cases."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pipeline.mirror.journals.pauses import PauseScope
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.records.batch import read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.recompression import recompressed
from pipeline.testing.simulation.mirrors.journals import SourceName
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, batches_in
from pipeline.testing.simulation.mirrors.mirror_group_rules import MirrorGroupRules
from pipeline.testing.simulation.mirrors.operator import RETRY_S, SiteOperator
from pipeline.testing.simulation.mirrors.pause_rules import PauseRules, covers
from pipeline.testing.simulation.mirrors.replica_rules import SourceWatch
from pipeline.testing.simulation.state_rules import StateInZooKeeper

REPLICA = TopicPartition("orders", 0)
UNIT = ("east", "orders", 0)
OTHER = ("east", "orders", 1)


class Replica:
    """Broker 1's replica, which leads in an epoch."""

    topic_partition = REPLICA
    own_id = BrokerId(1)

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = LeaderEpoch(leader_epoch)


def zstd_batch(value: bytes = b"paid" * 50, header: bytes = b"eu", **fields: int) -> bytes:
    """A batch of one record that was compressed with zstd after it was made, with other fields in its header."""
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(b"key", value, (("region", header),), 1_700_000_000_000)
    batch = bytearray(recompressed(memoryview(builder.build()), Codec.ZSTD).data)
    write_header(batch, read_header(batch)._replace(**fields))
    return bytes(batch)


def plain_batch() -> bytes:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(b"key", b"paid" * 50, (("region", b"eu"),), 1_700_000_000_000)
    return bytes(builder.build())


def contents(batch: bytes) -> list[BatchIdentity]:
    return batches_in(batch, by_contents=True)


def test_a_recompressed_batch_is_the_same_one() -> None:
    batches = [plain_batch(), zstd_batch(), zstd_batch(partition_leader_epoch=7)]
    assert len({tuple(contents(each)) for each in batches}) == 1
    assert len({tuple(batches_in(each, by_contents=False)) for each in batches}) == 2


@pytest.mark.parametrize(
    "other",
    [
        zstd_batch(b"paid" * 49),
        zstd_batch(header=b"us"),
        zstd_batch(base_timestamp=1_700_000_000_001),
        zstd_batch(max_timestamp=1_700_000_000_001),
        zstd_batch(last_offset_delta=1),
        zstd_batch(producer_id=4),
    ],
    ids=["value", "header", "timestamp", "max timestamp", "last offset", "producer"],
)
def test_a_recompressed_batch_that_lost_something_is_another_one(other: bytes) -> None:
    assert contents(other) != contents(plain_batch())


def test_a_source_had_what_its_log_has_when_it_is_opened() -> None:
    header = read_header(plain_batch())
    log = SimpleNamespace(topic_id=None, log_start_offset=0, headers=lambda _from_offset: iter([header]))
    partition: Any = SimpleNamespace(topic_partition=REPLICA, log=log)
    watch = SourceWatch(by_contents=False)
    watch.opened((BrokerId(1), 2), partition)
    assert watch.batches_of(SourceName("east", REPLICA, None)) == {
        BatchIdentity.of(header): {header.partition_leader_epoch}
    }


def rules(leader: int = 1, leader_epoch: int = 3) -> MirrorGroupRules:
    zookeeper: Any = SimpleNamespace(on_changes=lambda _znodes: None)
    state = StateInZooKeeper(leader=leader, leader_epoch=leader_epoch, isr=(leader,))
    return MirrorGroupRules(zookeeper, lambda _replica: state)


@pytest.mark.parametrize(
    ("assignments", "problems"),
    [
        ([{UNIT: ("a", 5)}, {UNIT: ("a", 5), OTHER: ("b", 6)}, {UNIT: ("b", 7), OTHER: ("b", 6)}], 0),
        ([{UNIT: ("a", 5)}, {UNIT: ("b", 5)}], 1),
        ([{UNIT: ("a", 5)}, {UNIT: ("a", 6)}], 1),
        ([{UNIT: ("a", 5)}, {}, {UNIT: ("a", 5)}], 1),
        ([{UNIT: ("a", 5)}, {UNIT: ("b", 7)}, {UNIT: ("a", 5)}], 1),
    ],
    ids=["epochs rise", "an epoch of two members", "a new epoch for what stays", "an old epoch again", "overwritten"],
)
def test_a_unit_that_moves_gets_an_epoch_above_all_others(
    assignments: list[dict[tuple[str, str, int], tuple[str, int]]], problems: int
) -> None:
    found = rules()
    for assigned in assignments:
        found.judge(assigned)
    assert len(found.problems) == problems, found.problems


@pytest.mark.parametrize(
    ("epoch", "leader_epoch", "problems"), [(8, 3, 0), (9, 3, 0), (7, 3, 1), (-1, 3, 1), (7, 2, 0)]
)
def test_no_batch_of_an_older_copier_is_appended_by_the_leader(epoch: int, leader_epoch: int, problems: int) -> None:
    partition: Any = Replica(leader_epoch)
    found = rules()
    found.claimed(REPLICA, 8)
    found.checked(partition, epoch)
    found.appended(partition)
    assert len(found.problems) == problems


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (PauseScope(flow="east"), True),
        (PauseScope(flow="west"), False),
        (PauseScope(source="east"), True),
        (PauseScope(source="east", topic="orders"), True),
        (PauseScope(source="west", topic="orders"), False),
        (PauseScope(source="east", topic="orders", partition=0), True),
        (PauseScope(source="east", topic="orders", partition=1), False),
    ],
    ids=str,
)
def test_a_pause_holds_the_partitions_of_its_scope(scope: PauseScope, expected: bool) -> None:
    assert covers(scope, "east", REPLICA) == expected


class PausedMirror:
    """Shows pauses, and ends one at a request."""

    def __init__(self) -> None:
        self.pauses: list[dict[str, object]] = []

    def request(self, _what: str, _act: object) -> None:
        self.pauses.pop()


async def test_a_pause_that_comes_after_all_were_ended_is_ended_too(autojump_clock: object) -> None:
    mirror = PausedMirror()
    site: Any = SimpleNamespace(pauses=PauseRules(), statuses=lambda: [(mirror, {"pauses": mirror.pauses})])
    operator = SiteOperator(site, random.Random(1), lambda: True)
    await operator.resume_all()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operator.keep_resumed)
        mirror.pauses.append({"flow": None, "source": "east", "topic": None, "partition": None})
        await trio.sleep(3 * RETRY_S)
        assert not mirror.pauses
        nursery.cancel_scope.cancel()
