"""`pipeline perf` against a broker."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from pipeline.cli.main import main
from pipeline.cli.terminal import output
from pipeline.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.long

Perf = Callable[..., "Ended"]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


class Ended(NamedTuple):
    code: object
    stdout: str
    stderr: str


@pytest.fixture
def perf(local: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Perf:
    """Run a command in this process: starting one takes longer than most of them."""
    monkeypatch.setattr(output, "configure_logging", lambda *_: None)

    def run(*arguments: str, code: int = 0) -> Ended:
        monkeypatch.setattr(sys, "argv", ["pipeline", *arguments, "-b", local.bootstrap])
        with capture_logs(), pytest.raises(SystemExit) as ended:
            main()
        done = Ended(ended.value.code, *capsys.readouterr())
        assert done.code == code, done.stderr
        return done

    return run


def figures(perf: Perf, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(perf(*arguments, "--json", code=code).stdout)
    return found


def test_records_are_published_and_read(perf: Perf, tmp_path: Path) -> None:
    perf("topic", "create", "perf", "--partitions", "3")
    published = figures(perf, "perf", "produce", "perf", "--records", "5000", "--size", "100", "-X", "linger.ms=0")
    assert (published["records"], published["bytes"], published["failed"]) == (5000, 500_000, 0)
    assert published["records_per_s"] == pytest.approx(5000 / published["seconds"], rel=0.01)
    latency = published["latency_ms"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert list(latency) == ["avg", "max", "p50", "p95", "p99", "p99.9"]

    file = tmp_path / "values"
    file.write_bytes(b"one\ntwo\n")
    assert figures(perf, "perf", "produce", "perf", "-n", "3", "--payload-file", str(file))["bytes"] == 9

    read = figures(perf, "perf", "consume", "perf")
    assert (read["records"], read["bytes"], read["complete"]) == (5003, 500_009, True)
    assert figures(perf, "perf", "consume", "perf", "-n", "77")["records"] == 77
    lacking = figures(perf, "perf", "consume", "perf", "-n", "5004", "--timeout", "0.5", code=1)
    assert (lacking["records"], lacking["complete"]) == (5003, False)


def test_a_rate_is_kept(perf: Perf) -> None:
    perf("topic", "create", "slow")
    assert figures(perf, "perf", "produce", "slow", "-n", "50", "--rate", "100")["seconds"] >= 0.49


def test_words_for_people(perf: Perf) -> None:
    perf("topic", "create", "told")
    first, second = perf("perf", "produce", "told", "-n", "10").stdout.splitlines()
    assert first.startswith("10 records, 10240 bytes, in ")
    assert second.startswith("Latency in ms: avg ")
    assert perf("perf", "consume", "told").stdout.startswith("10 records, 10240 bytes, in ")


def test_refusals(perf: Perf, tmp_path: Path) -> None:
    assert "does not exist" in perf("perf", "produce", "none", "-n", "1", code=1).stderr
    perf("topic", "create", "small")
    read = figures(perf, "perf", "consume", "small")
    assert (read["records"], read["seconds"], read["records_per_s"]) == (0, 0, None)
    both = ("--size", "1", "--payload-file", str(tmp_path / "none"))
    assert "either" in perf("perf", "produce", "small", "-n", "1", *both, code=2).stderr
    ended = perf("perf", "produce", "small", "-n", "5", "--size", "2000000", "--json", code=1)
    assert "MESSAGE_TOO_LARGE" in ended.stderr
    assert json.loads(ended.stdout)["records"] == 0
    perf("topic", "configure", "small", "--set", "max.message.bytes=1000")
    ended = perf("perf", "produce", "small", "-n", "5", "--size", "2000", "--json", code=1)
    assert "0 records acknowledged, 5 not published, 0 perhaps published" in ended.stderr
    assert json.loads(ended.stdout)["failed"] == 5
