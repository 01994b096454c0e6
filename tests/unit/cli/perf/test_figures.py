"""Figures of performance tests."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.perf.figures import BUCKET_S, Latencies, Throughput
from pipeline.cli.perf.payloads import random_payloads, read_payloads
from pipeline.errors import ConfigurationError


@given(st.lists(st.floats(0, 200), min_size=1), st.sampled_from([0.001, 0.5, 0.95, 0.99, 0.999, 1.0]))
def test_a_quantile_is_a_bound_of_its_share_and_no_better_than_it_was(latencies: list[float], share: float) -> None:
    counted = Latencies()
    for latency in latencies:
        counted.add(latency)
    found = counted.quantile_s(share)
    assert sum(latency <= found for latency in latencies) >= share * len(latencies)
    assert sum(latency < found - 1.01 * BUCKET_S for latency in latencies) < share * len(latencies)
    assert found <= max(latencies) == counted.max_s


def test_figures_of_latencies() -> None:
    counted = Latencies()
    assert counted.to_json() is None
    for number in range(1, 1001):
        counted.add(number / 1000 - BUCKET_S / 2)
    assert counted.to_json() == pytest.approx(
        {"avg": 500.5, "max": 1000, "p50": 500, "p95": 950, "p99": 990, "p99.9": 999}, abs=0.11
    )


def test_throughput() -> None:
    measured = Throughput(records=2000, bytes=4 << 20, seconds=2.0)
    assert measured.to_json() == {
        "records": 2000, "bytes": 4 << 20, "seconds": 2.0, "records_per_s": 1000.0, "mb_per_s": 2.0,
    }  # fmt: skip
    assert str(measured) == "2000 records, 4194304 bytes, in 2.000 s: 1000 records/s, 2.00 MB/s"
    assert Throughput(records=0, bytes=0, seconds=0.0).to_json()["mb_per_s"] is None


def test_payloads(tmp_path: Path) -> None:
    assert len(set(random_payloads(10, Random(1)))) == 1000
    (large,) = random_payloads(32 << 20, Random(1))
    assert len(large) == 32 << 20
    assert large[:100].isupper()
    file = tmp_path / "values"
    for data, lines in ((b"a\n\nb\n", [b"a", b"", b"b"]), (b"a\r\n\xff", [b"a\r", b"\xff"]), (b"\n", [b""])):
        file.write_bytes(data)
        assert read_payloads(file) == lines
    file.write_bytes(b"")
    for path, reason in ((file, "is empty"), (tmp_path, "cannot be read"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(ConfigurationError, match=reason):
            read_payloads(path)
