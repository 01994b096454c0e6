"""What a load and its verification report to the audit about all commits of a table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.events.report import ROW, CountReport, SkippedOffsets, SkipReason
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.cli.load.report import report_counts, report_stored
from pipeline.cli.main import app
from pipeline.client.cluster.cluster import Cluster
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import AbortedRecords, Manifest, OffsetRange
from pipeline.hadoop.commit.publication import Head, commit, read_head
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import NOTHING_NEW
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.release import release
from pipeline.hadoop.ranges.batch_counts import check_coverage
from pipeline.hadoop.upkeep.table import open_table
from pipeline.hadoop.upkeep.verification import FileDifference, verify_files
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header
from pipeline.records.batch_hashes import content_hash_of, place_hash_of
from pipeline.records.record import iterate_records
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import serving_cluster
from tests.support.copies import read_logs
from tests.support.load_task import TaskLoad, batch
from tests.unit.hadoop.load.test_release import BATCHES, clock, manifest_of, set_up
from tests.unit.hadoop.load.test_task import NOON_MS, lookup, users

NOTHING_CAME = [TopicResult(topic="t", seconds=0, result=NOTHING_NEW)]
LOADED = OffsetRange(partition=4, start=0, end=8)


def loads_of(root: Path, cluster: Cluster) -> LoadsConfig:
    brokers = ",".join(map(str, cluster.config.bootstrap))
    settings = {"root": str(root), "value.format": "binary", "topic": "t", "bootstrap.servers": brokers}
    return LoadsConfig.from_settings(settings, {})


async def reports_of(cluster: Cluster) -> list[CountReport]:
    log = (await read_logs(cluster, [TopicPartition(AUDIT_TOPIC, 0)]))[TopicPartition(AUDIT_TOPIC, 0)]
    return [decode_count_report(bytes(record.value or b"")) for record in iterate_records(log)]


def hours(report: CountReport) -> dict[tuple[int, int], dict[str, Any]]:
    """Rows of hours by partition and start."""
    rows = report.rows[report.rows["span_ms"] == HOUR_MS]
    return {
        (int(row["partition"]), int(row["start_ms"])): {name: row[name].item() for name in ROW.names or ()}
        for row in rows
    }


def load_all(root: Path) -> Manifest:
    """A load of BATCHES as plain bytes: nothing is set aside."""
    load = TaskLoad(root, schemas=None, quarantine=False, format="parquet")
    covered = check_coverage("t", [LOADED], [load.run(*BATCHES)], 600_000)
    manifest = replace(manifest_of(LOADED, "parquet", covered), sums=covered.sums, aborted=covered.aborted)
    commit(LocalFileSystem(), topic_layout(str(root), "t"), manifest, Head(manifest=None, sha256=None))
    return manifest


def follow(root: Path, **changes: Any) -> None:
    """Commit a load without files after the last one."""
    files, layout = LocalFileSystem(), topic_layout(str(root), "t")
    head = read_head(files, layout)
    assert head.manifest is not None
    empty: dict[str, Any] = {"ranges": (), "files": (), "counts": {}, "sums": {}, "aborted": (), "skipped": ()}
    made = replace(
        head.manifest,
        sequence=head.manifest.sequence + 1,
        run_id=f"r{head.manifest.sequence + 1}",
        previous_sha256=head.sha256,
        **(empty | changes),
    )
    commit(files, layout, made, head)


async def test_rows_have_the_sums_of_the_batches_as_brokers_count_them(tmp_path: Path) -> None:
    load_all(tmp_path)
    async with serving_cluster(tmp_path / "brokers") as cluster:
        await report_counts(loads_of(tmp_path, cluster), NOTHING_CAME, "hub")
        (report,) = await reports_of(cluster)
    assert (report.counter.tier, report.counter.cluster) == (Tier.LOAD, "hub")
    assert report.counter.name == f"file://{tmp_path}"
    ((place, row),) = hours(report).items()
    headers = [read_header(made) for made in BATCHES]
    assert place == (4, NOON_MS) and row["has_sums"]
    assert row["records"] == 8 and row["batches"] == 4
    assert row["content_sum"] == sum(map(content_hash_of, headers)) % 2**64
    assert row["place_sum"] == sum(map(place_hash_of, headers)) % 2**64
    assert (row["first_offset"], row["last_offset"], row["revision"]) == (0, 7, 8)
    (position,) = report.positions
    assert (position["end_offset"], position["start_offset"], position["counted_from"]) == (8, 0, 0)
    assert [latency.process for latency in report.latencies] == ["r1"]


async def test_two_roots_of_one_topic_are_two_counters(tmp_path: Path) -> None:
    """Fault 16: the table that told last hid what the other one lacks."""
    for name in ("one", "two"):
        load_all(tmp_path / name)
    async with serving_cluster(tmp_path / "brokers") as cluster:
        for name in ("one", "two"):
            await report_counts(loads_of(tmp_path / name, cluster), NOTHING_CAME, "hub")
        names = {report.counter.name for report in await reports_of(cluster)}
    assert names == {f"file://{tmp_path}/one", f"file://{tmp_path}/two"}


async def test_lost_offsets_and_aborted_records_are_told_with_their_offsets(tmp_path: Path) -> None:
    load_all(tmp_path)
    aborted = AbortedRecords(partition=4, hour_ms=NOON_MS, records=2, first_offset=11, last_offset=12)
    lost = OffsetRange(partition=4, start=8, end=11)
    follow(tmp_path, offsets={4: 11}, skipped=(lost,), lost={4: 3}, aborted=(aborted,))
    async with serving_cluster(tmp_path / "brokers") as cluster:
        for _ in range(2):
            await report_counts(loads_of(tmp_path, cluster), NOTHING_CAME, "hub")
        reports = await reports_of(cluster)
    for report in reports:
        assert list(report.skipped) == [
            SkippedOffsets(0, 4, None, 8, 10, 3, SkipReason.LOST),
            SkippedOffsets(0, 4, NOON_MS, 11, 12, 2, SkipReason.ABORTED),
        ]
        assert report.positions["lost_offsets"].tolist() == [3]


async def test_a_run_with_nothing_new_reports_a_release(tmp_path: Path) -> None:
    set_up(tmp_path, "parquet")
    async with serving_cluster(tmp_path / "brokers") as cluster:
        loads = loads_of(tmp_path, cluster)
        for number, aside in ((0, 8), (1, 2)):
            await report_counts(loads, NOTHING_CAME, "hub")
            report = (await reports_of(cluster))[number]
            row = hours(report)[4, NOON_MS]
            assert row["quarantined"] == aside
            assert row["records"] == 8 - aside
            if number == 0:
                assert release(str(tmp_path), "t", lookup, clock=clock).released == 6
    assert row["revision"] == 8


def damage(root: Path, how: Callable[[Path], Any]) -> None:
    table = open_table(str(root), "t")
    (file,) = table.state().data_files()
    how(Path(table.layout.absolute(file.path)))


async def stored(root: Path, cluster: Cluster) -> dict[str, Any]:
    """Verify the files, report, and return the row of the hour that the audit has then."""
    table, state = open_table(str(root), "t"), table_of(str(root), "t")
    differences = verify_files(table, state, lambda _: None)
    await report_stored(loads_of(root, cluster).config_of("t"), "hub", state, differences)
    report = (await reports_of(cluster))[-1]
    assert report.counter.tier is Tier.STORED and report.counter.name == f"file://{root}"
    return hours(report)[4, NOON_MS]


async def test_files_that_are_whole_are_stored_as_they_were_loaded(tmp_path: Path) -> None:
    load_all(tmp_path)
    async with serving_cluster(tmp_path / "brokers") as cluster:
        await report_counts(loads_of(tmp_path, cluster), NOTHING_CAME, "hub")
        (loaded,) = hours((await reports_of(cluster))[0]).values()
        assert await stored(tmp_path, cluster) == loaded


async def test_a_file_that_is_gone_cut_or_changed_lowers_its_hour_until_it_is_restored(tmp_path: Path) -> None:
    load_all(tmp_path)
    whole: list[bytes] = []
    damage(tmp_path, lambda path: whole.append(path.read_bytes()))
    changed = bytearray(whole[0])
    changed[len(changed) // 2] ^= 1
    async with serving_cluster(tmp_path / "brokers") as cluster:
        for how in (
            lambda path: path.unlink(),
            lambda path: path.write_bytes(whole[0][:-1]),
            lambda path: path.write_bytes(changed),
        ):
            damage(tmp_path, how)
            row = await stored(tmp_path, cluster)
            assert (row["records"], row["has_sums"], row["content_sum"]) == (0, False, 0)
        damage(tmp_path, lambda path: path.write_bytes(whole[0]))
        row = await stored(tmp_path, cluster)
        assert row["records"] == 8 and row["has_sums"]


async def test_a_table_that_differs_from_its_commits_otherwise_has_no_sums(tmp_path: Path) -> None:
    load_all(tmp_path)
    state = table_of(str(tmp_path), "t")
    async with serving_cluster(tmp_path / "brokers") as cluster:
        outside = FileDifference(path="partition 4, offsets 0 to 7", reason="are in no commit")
        await report_stored(loads_of(tmp_path, cluster).config_of("t"), "hub", state, [outside])
        (row,) = hours((await reports_of(cluster))[0]).values()
    assert (row["records"], row["crc_sum"], row["has_sums"]) == (8, 0, False)


def test_a_datacenter_needs_brokers_to_report_to(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["load", "verify", "t", "--root", str(tmp_path), "--datacenter", "hub"])
    assert result.exit_code != 0


def test_a_task_brings_the_sums_of_its_batches(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=None, quarantine=False, format="parquet")
    result = load.run(batch(0, users(b"x", b"y")))
    ((key, sums),) = result.sums.items()
    assert key == (4, NOON_MS) and sums.batches == 1 and (sums.first_offset, sums.last_offset) == (0, 1)
