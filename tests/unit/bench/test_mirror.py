"""Rows of the mirror's benchmark, its data, and the settings of the mirrors."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench.lines import log_bytes, log_lines
from bench.mirror.delays import rows_of
from bench.mirror.flows import (
    DEFAULT,
    FROM_KAFKA,
    OWN,
    RECOMPRESSING,
    RECORDS,
    TUNED,
    Copied,
    Data,
    comparisons,
    flows_of,
)
from bench.mirror.mirrors import mirror_of
from bench.report import Options
from pipeline.cli.terminal.settings import read_settings
from pipeline.mirror.config import CompressionType, MirrorConfig

DATA = Data(codec="none", partitions=4, records=10)
COPIED = Copied(payload=200, mirror_cpu=2, all_cpu=5, peak_rss=100, first_record=0.9)


def test_a_full_run_has_every_codec_number_of_partitions_flow_and_figure() -> None:
    groups = comparisons(Options())
    assert len(groups) == 3 * 2
    assert {each.data.records for group in groups for each in group} == {RECORDS}
    for group in groups:
        data = group[0].data
        is_recompressed = data.codec != "zstd" and data.partitions == 4
        assert len(group) == (3 + is_recompressed) * 5
        assert set(flows_of(group)) == {FROM_KAFKA, OWN, TUNED, DEFAULT} | (
            {RECOMPRESSING} if is_recompressed else set()
        )


def test_only_flows_that_selected_rows_compare_are_run() -> None:
    [group] = comparisons(Options(rows="zstd, 64 partitions, ours to ours: payload"))
    assert flows_of(group) == [OWN, TUNED]
    [group] = comparisons(Options(rows="zstd, 64 partitions, ours to ours: payload", alone=True))
    assert flows_of(group) == [OWN]


def test_recompression_runs_beside_our_own_copy_without_a_target(tmp_path: Path) -> None:
    [group] = comparisons(Options(rows="none, 4 partitions, .*recompressed.*payload", alone=True))
    assert flows_of(group) == [RECOMPRESSING, OWN]
    (row,) = group
    assert row.row({RECOMPRESSING: [COPIED], OWN: [replace(COPIED, payload=400)]}, {}).ratio == 0.5
    assert row.row({RECOMPRESSING: [COPIED], OWN: [COPIED]}, {}).target is None
    mirror_of(RECOMPRESSING, DATA, "lines", ("127.0.0.1:1", "127.0.0.1:2"), tmp_path)
    config = MirrorConfig.from_settings(read_settings(tmp_path / "mirror.toml"))
    assert config.compression_type is CompressionType.ZSTD


def test_a_quick_run_has_a_tenth_of_the_records_and_less_data() -> None:
    groups = comparisons(Options(quick=True))
    assert [group[0].data.name for group in groups] == ["none, 4 partitions", "zstd, 4 partitions"]
    assert groups[0][0].data.records == RECORDS / 10


def test_a_row_has_the_median_of_all_rounds_and_no_figure_of_a_flow_that_failed() -> None:
    payload = next(each for each in comparisons(Options())[0] if each.peer is TUNED)
    copied = {payload.flow: [COPIED, replace(COPIED, payload=400), COPIED], TUNED: [replace(COPIED, payload=50)]}
    assert payload.row(copied, {}).ratio == 4
    row = payload.row(copied, {payload.flow: "3 records are missing"})
    assert (row.ours, row.theirs) == (None, 50)
    assert row.error == f"{payload.flow.name}: 3 records are missing"
    assert not row.is_met


def test_records_are_spread_over_all_partitions() -> None:
    assert DATA.counts == {0: 3, 1: 3, 2: 2, 3: 2}


def test_log_lines_come_in_turn_and_each_pass_begins_one_line_later() -> None:
    lines = list(islice(log_lines(), 20_000))
    assert lines[10_000:] == [*lines[1:10_000], lines[0]]
    assert log_bytes(10_003) == sum(map(len, lines[:10_003]))


def test_our_mirror_is_started_with_its_defaults(tmp_path: Path) -> None:
    mirror_of(OWN, DATA, "lines", ("127.0.0.1:1", "127.0.0.1:2"), tmp_path)
    config = MirrorConfig.from_settings(read_settings(tmp_path / "mirror.toml"))
    assert [source.name for source in config.sources] == ["source"]
    assert "127.0.0.1:2" in [str(address) for address in config.destination]


def test_delays_are_rows_of_their_own() -> None:
    assert len(rows_of(Options())) == 2 * 2
    assert {peer for _, peer, _ in rows_of(Options(alone=True)).values()} == {None}
    assert rows_of(Options(rows="payload")) == {}
