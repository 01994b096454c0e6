"""`pipeline consume` at a batch that cannot be opened, and at one that holds no records for readers."""

import io
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import typer

from pipeline.cli.consume.consume import print_records
from pipeline.cli.consume.layout import simple_layout
from pipeline.cli.consume.options import ConsumeOptions
from pipeline.cli.consume.printing import PrintOptions
from pipeline.cli.consume.selection import Selection
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import BrokerId, TopicPartition
from pipeline.records.batch import CONTROL, read_header, set_base_offset, write_crc, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.brokers import clock, replicated_cluster
from tests.support.scripted_broker import Partition, ScriptedCluster

LAYOUT = simple_layout(None, b"\n")
OPTIONS = ConsumeOptions(selection=Selection(topics=("t",)), printing=PrintOptions(layout=LAYOUT))
DAMAGED = b"damaged"


async def test_a_bad_batch_is_told_in_options_and_left_out_on_demand(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with replicated_cluster(tmp_path, brokers=1) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1)])
        for value in (b"a", DAMAGED, b"b"):  # a batch of each
            async with open_producer(brokers.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
                await producer.send("t", value)
        (segment,) = brokers.replica(1, "t").log.directory.glob("*.log")
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(DAMAGED))
            file.write(DAMAGED.upper())
        (address,) = await brokers.addresses()
        capsysbinary.readouterr()

        with pytest.raises(typer.Exit) as caught:
            await print_records(OPTIONS, str(address), None)
        assert caught.value.exit_code == 1
        told = capsysbinary.readouterr()
        assert told.out == b"a\n"
        assert b"--skip-bad-batches" in told.err
        assert b"--partition 0 --offset 2" in told.err
        assert b"skip_batch" not in told.err

        await print_records(replace(OPTIONS, selection=Selection(topics=("t",), offset="2")), str(address), None)
        assert capsysbinary.readouterr().out == b"b\n"

        await print_records(
            replace(OPTIONS, printing=PrintOptions(layout=LAYOUT, skip_bad_batches=True)), str(address), None
        )
        told = capsysbinary.readouterr()
        assert told.out == b"a\nb\n"
        assert b"skipped t-0, offsets 1 to 1" in told.err


@pytest.mark.parametrize("offset", ["²", "9" * 5000, "1_0", "-1", ""])
async def test_an_offset_that_is_none_is_wrong_usage(capsysbinary: pytest.CaptureFixture[bytes], offset: str) -> None:
    scripted = ScriptedCluster()
    scripted.add_topic("t", [1])
    async with scripted.broker(1) as address:
        with pytest.raises(typer.Exit) as caught:
            await print_records(replace(OPTIONS, selection=Selection(topics=("t",), offset=offset)), str(address), None)
    assert caught.value.exit_code == 2
    assert b"give earliest, latest, or an offset" in capsysbinary.readouterr().err


async def test_consume_ends_where_the_last_batch_holds_no_records(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    scripted = ScriptedCluster()
    scripted.add_topic("t", [1])
    partition = scripted.partition(TopicPartition("t", 0))
    partition.append_values([b"a"])
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(bytes(4), bytes(6), (), 0)
    marker = builder.build()
    set_base_offset(marker, 0, 1)
    header = read_header(marker)
    write_header(marker, header._replace(attributes=header.attributes | CONTROL))
    write_crc(marker, 0, len(marker))
    partition.batches.append((read_header(marker), bytes(marker)))
    async with scripted.broker(1) as address:
        with trio.fail_after(60):
            await print_records(OPTIONS, str(address), None)
    assert capsysbinary.readouterr().out == b"a\n"


async def test_a_header_that_occurs_several_times_is_told_each_time(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with replicated_cluster(tmp_path, brokers=1) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1)])
        async with open_producer(brokers.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            await producer.send("t", b"v", headers=(("a", b"1"), ("b", None), ("a", b"\xff")))
        (address,) = await brokers.addresses()
        capsysbinary.readouterr()
        await print_records(replace(OPTIONS, printing=PrintOptions(layout=LAYOUT, json=True)), str(address), None)
        assert json.loads(capsysbinary.readouterr().out)["headers"] == {"a": ["1", {"base64": "/w=="}], "b": None}


class ShownBytes:
    """Standard output in memory. `wait` returns when it has a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shown = bytearray()
        self._changed = trio.Event()
        shown = self

        class Pipe(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                shown._shown += data
                trio.from_thread.run_sync(shown._notify)  # written in a thread
                return len(data)

        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(Pipe())))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, text: bytes) -> None:
        with trio.fail_after(30):
            while text not in self._shown:
                await self._changed.wait()


async def test_followed_records_are_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ShownBytes(monkeypatch)
    async with replicated_cluster(tmp_path, brokers=1) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1)])
        async with open_producer(brokers.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            await producer.send("t", b"value")
        (address,) = await brokers.addresses()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(print_records, replace(OPTIONS, follow=True), str(address), None)
            await shown.wait(b"value\n")
            nursery.cancel_scope.cancel()


async def test_a_partition_that_is_added_is_followed_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ShownBytes(monkeypatch)
    scripted = ScriptedCluster()
    scripted.add_topic("t", [1])
    scripted.partition(TopicPartition("t", 0)).append_values([b"first"])
    options = replace(OPTIONS, follow=True, client={"metadata_max_age_ms": 100})
    async with scripted.broker(1) as address, trio.open_nursery() as nursery:
        nursery.start_soon(print_records, options, str(address), None)
        await shown.wait(b"first\n")
        scripted.topics["t"][1] = Partition(BrokerId(1))
        scripted.topics["t"][1].append_values([b"second", b"third"])
        await shown.wait(b"second\nthird\n")
        nursery.cancel_scope.cancel()
