"""`pipeline log`: what it shows of files, and its exit codes."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.errors import ConfigurationError
from pipeline.log.config import LogConfig
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.inspection.verification import Verifier
from pipeline.log.transactions import TRANSACTION_ENTRY
from pipeline.model import BrokerId, TopicPartition
from tests.unit.log.conftest import EPOCH, NOW_MS, Batches


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    directory = open_log_directory(
        tmp_path, DiskFiles(), config, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=NOW_MS
    )
    log, batches = directory.create(TopicPartition("t", 0), now_ms=NOW_MS), Batches()
    for number in range(20):
        batch = batches.make(2, timestamp=NOW_MS + number, producer_id=5, epoch=0, sequence=2 * number)
        batches.append(log, batch)
    directory.close()
    return tmp_path


def dump(file: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    shown = CliRunner().invoke(app, ["log", "dump", str(file), "--json", *options])
    assert shown.exit_code == code, shown.output
    return [json.loads(line) for line in shown.output.splitlines()]


@pytest.mark.parametrize("name", ["x.index", "x.timeindex", "1.index"])
def test_an_index_without_its_base_offset_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(24))
    result = CliRunner().invoke(app, ["log", "dump", str(tmp_path / name)])
    assert isinstance(result.exception, ConfigurationError)
    assert "in 20 digits" in str(result.exception)


def test_a_segment_is_dumped(logs: Path) -> None:
    file = logs / "t-0" / "00000000000000000000.log"
    first, *others = dump(file)
    assert (first["base_offset"], first["last_offset"], first["records"], first["codec"]) == (0, 1, 2, "none")
    assert (first["leader_epoch"], first["producer_id"], first["crc_ok"]) == (EPOCH, 5, True)
    assert [batch["base_offset"] for batch in others] == list(range(2, 2 * len(others) + 1, 2))
    records = [row for row in dump(file, "--records") if "offset" in row]
    assert len(records) == 2 * (1 + len(others))
    assert (records[1]["offset"], records[1]["timestamp"], records[1]["key"]) == (1, NOW_MS + 1, None)
    plain = CliRunner().invoke(app, ["log", "dump", str(file)]).output
    assert plain.startswith("base_offset 0  last_offset 1  position 0")


def test_a_damaged_segment_is_dumped_with_what_is_wrong(logs: Path) -> None:
    file = logs / "t-0" / "00000000000000000000.log"
    content = bytearray(file.read_bytes())
    content[70] ^= 1
    file.write_bytes(content[:-1])
    rows = dump(file, "--records", code=1)
    assert not rows[0]["crc_ok"]
    assert next(row["position"] for row in rows if "problem" in row) == 0
    assert "bytes into a batch" in rows[-1]["problem"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("*.index", {"offset", "position"}),
        ("*.timeindex", {"timestamp", "offset"}),
        ("*.snapshot", {"producer_id", "producer_epoch", "last_sequence", "last_timestamp"}),
        ("leader-epoch-checkpoint", {"epoch", "first_offset"}),
        ("../recovery-point-offset-checkpoint", {"topic", "partition", "offset"}),
    ],
)
def test_other_files_are_dumped(logs: Path, name: str, expected: set[str]) -> None:
    rows = dump(sorted((logs / "t-0").glob(name))[0])
    assert rows
    assert all(row.keys() == expected for row in rows)


def test_aborted_transactions_are_dumped(logs: Path) -> None:
    file = logs / "t-0" / "00000000000000000000.txnindex"
    file.write_bytes(TRANSACTION_ENTRY.pack(0, 7, 3, 9, 2) + TRANSACTION_ENTRY.pack(0, 6, 1, 10, 10))
    assert [list(row.values()) for row in dump(file)] == [[0, 7, 3, 9, 2], [0, 6, 1, 10, 10]]


def test_an_index_is_held_against_its_segment(logs: Path) -> None:
    file = sorted((logs / "t-0").glob("*.index"))[0]
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    assert "no batch begins at" in dump(file, code=1)[-1]["problem"]


def test_files_that_belong_to_no_log_are_refused(logs: Path) -> None:
    for file in (logs / "meta.properties", logs / "none"):
        assert CliRunner().invoke(app, ["log", "dump", str(file)]).exit_code != 0


@pytest.mark.parametrize(("verb", "reason"), [("dump", "is not a file"), ("verify", "is not a directory")])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, verb: str, reason: str) -> None:
    result = CliRunner().invoke(app, ["log", verb, str(tmp_path / ("n" * 300))])
    assert isinstance(result.exception, ConfigurationError)
    assert reason in str(result.exception)


def test_verify_says_how_much_it_saw_or_what_is_wrong(logs: Path) -> None:
    shown = CliRunner().invoke(app, ["log", "verify", str(logs)])
    assert (shown.exit_code, shown.output) == (0, "20 batches in 2 segments: no damage.\n")
    (logs / "t-0" / "00000000000000000000.index").unlink()
    shown = CliRunner().invoke(app, ["log", "verify", str(logs)])
    assert (shown.exit_code, shown.output) == (1, f"{logs}/t-0/00000000000000000000.index: is missing\n")
    told = json.loads(CliRunner().invoke(app, ["log", "verify", "--json", str(logs / "t-0")]).output)
    assert [problem["problem"] for problem in told["problems"]] == ["is missing"]


@pytest.mark.parametrize("looked_at", [".", "t-0"])
def test_a_partition_that_lost_its_segments_is_not_well(logs: Path, looked_at: str) -> None:
    for path in (logs / "t-0").glob("*.log"):
        path.unlink()
    shown = CliRunner().invoke(app, ["log", "verify", str(logs / looked_at)])
    assert shown.exit_code == 1
    assert f"{logs}/t-0: holds no segment\n" in shown.output
    if looked_at == ".":
        assert "t-0 at 40, its log ends at 0" in shown.output


def test_a_partition_that_is_deleted_meanwhile_is_passed_over(logs: Path) -> None:
    partition = logs / "t-0"
    for path in partition.glob("*.log"):
        path.unlink()
    verifier = Verifier(lambda _: None, lambda: shutil.rmtree(partition))
    assert list(verifier.verify(logs)) == []


def test_a_directory_without_logs_is_not_well(logs: Path) -> None:
    (logs / "none").mkdir()
    shown = CliRunner().invoke(app, ["log", "verify", "--json", str(logs / "none")])
    assert shown.exit_code == 1
    assert json.loads(shown.output)["problems"][0]["problem"] == "holds no segment"


def test_a_log_dir_without_partitions_is_well(tmp_path: Path) -> None:
    open_log_directory(
        tmp_path, DiskFiles(), LogConfig(), broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=NOW_MS
    ).close()
    (tmp_path / "t-0").mkdir()  # what a crash may leave of a creation
    shown = CliRunner().invoke(app, ["log", "verify", str(tmp_path)])
    assert (shown.exit_code, shown.output) == (0, "0 batches in 0 segments: no damage.\n")
