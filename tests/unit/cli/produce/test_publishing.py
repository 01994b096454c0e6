"""A command that fails names the lines that were published, whatever the brokers do: lists, records and tables."""

from pathlib import Path
from typing import Any

import pytest
import trio
import typer

from pipeline.cli.produce import publishing, reading
from pipeline.cli.produce.produce import producer_settings, publish_lines
from pipeline.cli.produce.reading import ProduceOptions
from pipeline.cli.produce.rows import RowOptions
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from tests.support.scripted_broker import ScriptedCluster

T0 = TopicPartition("t", 0)


def options(file: Path, *settings: str, **others: Any) -> ProduceOptions:
    client, config = producer_settings(list(settings), None, None)
    given = {
        "partition": None,
        "delimiter": b"\n",
        "max_records": None,
        "rate": None,
        "datacenter": None,
        "registries": None,
        "key_schema": None,
        "value_schema": None,
        **others,
    }
    return ProduceOptions(topic="t", file=file, client=client, config=config, **given)


@pytest.fixture
def scripted() -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.add_topic("t", [1])
    return cluster


@pytest.fixture(params=["lists", "records", "tables"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RowOptions:
    """Options with which lines are sent as lists, record by record, or as tables."""
    if request.param == "tables":
        monkeypatch.setattr(reading, "MANY_LINES", 0)
    return RowOptions(key_separator=None if request.param == "lists" else b":")


def published(scripted: ScriptedCluster) -> list[bytes]:
    return [(record.value or b"").removeprefix(b":") for record in scripted.partition(T0).records()]


async def failure(scripted: ScriptedCluster, given: ProduceOptions, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command tells."""
    async with scripted.broker(1) as address:
        with pytest.raises(typer.Exit) as caught, trio.fail_after(60):
            await publish_lines(given, str(address), None)
    assert caught.value.exit_code == 1
    (told,) = capsys.readouterr().err.splitlines()
    return told.removeprefix("pipeline: ")


async def test_a_refused_line_between_others(
    scripted: ScriptedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: RowOptions
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b":a\n:b\n:c\n:d\n")
    scripted.produce_script.extend([ErrorCode.NONE, ErrorCode.INVALID_RECORD])
    told = await failure(scripted, options(file, "batch.size=1", rows=rows), capsys)
    assert told.startswith("line 2 was not acknowledged: INVALID_RECORD")
    assert told.endswith("; 3 records published (lines 1, 3 to 4)")
    assert published(scripted) == [b"a", b"c", b"d"]


async def test_a_line_whose_answer_is_lost_may_have_been_published(
    scripted: ScriptedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: RowOptions
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b":a\n:b\n:c\n")
    scripted.produce_script.extend([ErrorCode.NONE, "close after"])
    told = await failure(
        scripted, options(file, "batch.size=1", "retries=0", "enable.idempotence=false", rows=rows), capsys
    )
    assert told.startswith("line 2 was not acknowledged, but may have been published: ")
    assert told.endswith("; 2 records published (lines 1, 3), 1 more may have been published (line 2)")
    assert published(scripted) == [b"a", b"b", b"c"]


async def test_lines_that_a_full_memory_accepted_are_told(
    scripted: ScriptedCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rows: RowOptions,
) -> None:
    monkeypatch.setattr(publishing, "SETTLE_S", 0.05)
    scripted.hold_produce = trio.Event()
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b":%099d\n" % number for number in range(4_000)))
    small = ("buffer.memory=100000", "batch.size=20000", "max.block.ms=100")
    told = await failure(scripted, options(file, *small, rows=rows), capsys)
    assert told.startswith("no memory for a record for t within max.block.ms (100)")
    assert "; 0 records published, " in told
    assert " more may have been published (lines 1 to " in told
