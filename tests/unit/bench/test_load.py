"""Rows of the load's benchmark, its data, and their targets."""

import struct
from itertools import islice

import pytest

from bench.lines import event_bytes, log_events
from bench.load.drivers import LoadRun
from bench.load.rows import AVRO, OURS, RECORDS, SPARK, comparisons
from bench.report import Options


def test_a_full_run_has_all_values_codecs_partitions_and_formats() -> None:
    found = comparisons(Options())
    assert len(found) == len({each.name for each in found}) == 2 * 2 * 2 * 2
    assert {each.topic.records for each in found} == {RECORDS}
    assert len(comparisons(Options(quick=True))) == 8


@pytest.mark.long
def test_rates_are_compared_and_a_failure_of_either_program_is_told() -> None:
    [each] = comparisons(Options(rows="Avro records, none, 4 partitions -> parquet", scale=0.001))
    payload = each.topic.payload_bytes
    runs = {
        (OURS, "parquet"): [LoadRun(1, 400_000_000), LoadRun(2, 300_000_000), LoadRun(4, 300_000_000)],
        (SPARK, "parquet"): [LoadRun(3, 0)],
    }
    rate, memory = each.rows(runs, {})
    assert (rate.ours, rate.ratio, rate.is_met) == (payload / 2e6, 1.5, False)
    assert (memory.ours, memory.is_met) == (300, True)
    assert not each.rows(runs, {(SPARK, "parquet"): "no Java"})[1].is_met


def test_events_are_framed_records_of_the_log() -> None:
    events = list(islice(log_events(7), 3))
    assert {struct.unpack(">bI", event[:5]) for event in events} == {(0, 7)}
    assert event_bytes(3) == sum(map(len, events))
    assert AVRO in {each.topic.values for each in comparisons(Options())}
