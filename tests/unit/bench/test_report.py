"""Rows, targets and what a user sees of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.broker.workloads import groups
from bench.cluster.throughput import groups as cluster_groups
from bench.report import Options, Row, Target, as_json, markdown, table

AT_LEAST = Target(bound=1.3, at_least=True)
AT_MOST = Target(bound=1.2, at_least=False)
OURS_AT_MOST = Target(bound=10, at_least=False, absolute=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "is_met"),
    [
        (130.0, 100.0, AT_LEAST, True),
        (129.0, 100.0, AT_LEAST, False),
        (120.0, 100.0, AT_MOST, True),
        (121.0, 100.0, AT_MOST, False),
        (10.0, None, OURS_AT_MOST, True),
        (10.1, None, OURS_AT_MOST, False),
        (1.0, 100.0, None, True),
        (None, 100.0, AT_LEAST, False),
        (1.0, None, AT_LEAST, False),
    ],
)
def test_a_target_is_met_or_missed(ours: Any, theirs: Any, target: Any, is_met: Any) -> None:
    row = Row(name="a", unit="s", ours=ours, peer="them", theirs=theirs, target=target)
    assert row.is_met is is_met
    assert row.verdict == ("" if target is None else "ok" if is_met else "MISSED")


def test_a_row_with_an_error_misses_its_target_whatever_its_figures() -> None:
    assert not Row(name="a", unit="s", ours=1, peer="them", theirs=1, target=AT_LEAST, error="1 lost").is_met
    assert not Row(name="a", unit="s", ours=1, error="1 lost").is_met


def test_the_table_says_what_was_missed_and_what_failed() -> None:
    rows = [
        Row(name="produce", unit="records/s", ours=90_000, peer="Apache Kafka", theirs=100_000, target=AT_LEAST),
        Row(name="consume", unit="records/s", peer="Apache Kafka", theirs=2, target=AT_LEAST, error="ours: no group"),
    ]
    produce, consume = table(rows).splitlines()[1:]
    assert " ".join(produce.split()) == "produce records/s 90,000 Apache Kafka 100,000 0.90 >= 1.3 MISSED"
    assert consume.endswith("failed: ours: no group")
    assert markdown(rows).count("\n") == 3
    described = json.loads(as_json("broker", rows))["rows"]
    assert [row["met"] for row in described] == [False, False]
    assert described[0]["ratio"] == 0.9


def test_rows_are_selected_by_what_their_names_hold() -> None:
    names = [work.name for group in groups(Options(rows="consume 1 KB, lz4, 10 ")) for work in group]
    assert names == ["consume 1 KB, lz4, 10 partitions, confluent-kafka", "consume 1 KB, lz4, 10 partitions, Java"]


def test_a_full_run_has_every_size_codec_acks_client_and_number_of_partitions() -> None:
    work = [work for group in groups(Options()) for work in group]
    assert len(work) == len({each.name for each in work}) == 24 + 12 + 2 * 2 * 2 * 2
    assert {each.data.partitions for each in work} == {1, 10, 100}
    assert len([each for group in groups(Options(quick=True)) for each in group]) < len(work) / 2


def test_a_part_of_the_page_is_replaced_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text("a\n<!-- x: written by make bench-x -->\nold\n<!-- /x -->\nz\n")
    page.write_part("x", "new\\1", path=path)
    page.write_part("x", "newer\\1", path=path)
    assert path.read_text() == "a\n<!-- x: written by make bench-x -->\n\nnewer\\1\n\n<!-- /x -->\nz\n"
    with pytest.raises(ValueError, match="no part y"):
        page.write_part("y", "", path=path)


def test_a_cluster_has_every_size_of_records_and_batches_client_and_number_of_partitions() -> None:
    work = [work for group in cluster_groups(Options()) for work in group]
    assert len(work) == len({each.name for each in work}) == 2 * 2 * 2 * 2 + 2 * 2 * 2
    assert {each.acks for each in work} == {"all"}
