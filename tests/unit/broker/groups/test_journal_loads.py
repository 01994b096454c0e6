"""Loading of the journal: in slices, past damage, and after a crash."""

from pathlib import Path

import pytest
import structlog
import trio

from pipeline.broker.groups import journal as journals
from pipeline.broker.groups.journal_reader import READ_BYTES
from pipeline.broker.groups.model import LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import journal_records
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.group_journals import NAME, NOW_MS, A, committed, one, running, turns


def damage(path: Path) -> None:
    """A payload at a thirtieth, and halfway the format of a batch: its header cannot be read."""
    (segment,) = path.glob(f"{NAME}/*.log")
    damaged = bytearray(segment.read_bytes())
    size = len(damaged) // 300
    damaged[10 * size + 70] ^= 1
    damaged[150 * size + 16] = 9
    segment.write_bytes(damaged)


async def test_damage_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        for number in range(300):
            await rig.journal.write("g", one(number, name=TopicPartition("a", number)))
        damage(tmp_path)
        with structlog.testing.capture_logs() as told:
            offsets = (await rig.reopen())["g"].offsets
        (line,) = (line for line in told if line["event"] == "group_journal_damaged")
        assert (line["partition"], line["passed_over"] > 0, len(line["first"]) > 0) == (0, True, True)
        missing = {number for number in range(300) if TopicPartition("a", number) not in offsets}
        assert {10, 150} <= missing
        assert len(missing) < 150
        assert TopicPartition("a", 299) in offsets
        assert rig.code() == ErrorCode.NONE


async def test_others_go_on_while_a_long_journal_is_loaded(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        padding = "x" * 200
        for number in range(30):
            value = OffsetAndMetadata(offset=Offset(number), metadata=padding, commit_timestamp_ms=NOW_MS)
            change = {TopicPartition("a", index): value for index in range(500)}
            await rig.journal.write("g", journal_records("g", change))
        assert rig.partition.log.snapshot.size_bytes > 2 * READ_BYTES
        rig.close()
        known = len(rig.heard.loaded)
        await rig.open(1)
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await rig.journal.write("g", one(1))
        turns = 0
        with trio.fail_after(60):
            while len(rig.heard.loaded) == known:
                await trio.lowlevel.checkpoint()
                turns += 1
        assert turns > 30
        assert {found.offset for found in rig.heard.loaded[-1][1]["g"].offsets.values()} == {29}


async def test_very_many_groups_are_told_in_slices_and_taken_back_if_the_partition_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SLICE_GROUPS", 10)
    async with running(tmp_path) as rig:
        await rig.open()
        for number in range(35):
            await rig.journal.write(f"g{number}", one(number, f"g{number}"))
        assert len(await rig.reopen()) == 10
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        rig.close()
        assert rig.heard.unloaded == [0, 0]
        known = len(rig.heard.loaded)
        await rig.open(rig.partition.leader_epoch + 1)
        with trio.fail_after(60):
            while rig.code() is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
        told = [groups for _, groups in rig.heard.loaded[known:]]
        assert [len(groups) for groups in told] == [10, 10, 10, 5]
        assert {group_id for groups in told for group_id in groups} == {f"g{number}" for number in range(35)}


async def test_a_load_ends_when_the_partition_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.close()
        await rig.open(1)
        rig.close()
        assert rig.code() == ErrorCode.NOT_COORDINATOR
        assert await rig.reopen() == {"g": LoadedGroup(offsets={A: committed(1)})}
        assert len(rig.heard.loaded) == 2
        assert rig.heard.unloaded == [0]


async def test_a_journal_is_not_loaded_before_all_its_records_are_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.close()
        rig.partition.high_watermark = Offset(0)
        await rig.open(1, isr=(1, 2))
        await turns(100)
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert rig.journal.is_loading
        rig.follower_has()
        assert (await rig.loaded(1))["g"].offsets == {A: committed(1)}
        assert rig.code() == ErrorCode.NONE
