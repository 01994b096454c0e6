"""Which hours get a marker, and what late data does to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.hadoop.commit import complete_hours as complete_hours_module
from pipeline.hadoop.commit.complete_hours import (
    Acceptance,
    HourVerdict,
    complete_hours,
    judge_hours,
    publish_markers,
    read_markers,
    valid_markers,
)
from pipeline.hadoop.commit.layout import PATH_FORMATS, hour_folder, topic_layout
from pipeline.hadoop.commit.manifest import AsideBatch, ManifestError
from pipeline.hadoop.commit.publication import Head, commit, read_head
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS, TableState, recent_counts
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.records.tally import HOUR_MS, Counts
from tests.support.manifests import manifest_after

HOUR = 1_767_261_600_000
NAME = "2026-01-01T10:00:00Z"
LATER = "2026-01-01T11:00:00Z"
FULL = Counts(10, 700, 2, 77)
NOW_MS = HOUR + 5 * HOUR_MS
ACCEPTED = Acceptance(hour=NAME, accepted_by="ann", reason="retention was too short")


@pytest.fixture
def state(make_manifest: Any) -> TableState:
    last = make_manifest(Head(manifest=None, sha256=None))
    counts = {(0, HOUR): Counts(4, 300, 1, 70), (1, HOUR + 600_000): Counts(6, 400, 1, 7)}
    return TableState(last=last, sha256="", files={}, counts=counts)


def sums(records: int) -> dict[str, int]:
    return {"records": records, "bytes": 700, "batches": 2, "crc_sum": 77}


def hour(name: str = NAME, status: str = "exact", counts: Counts = FULL, **stages: Any) -> dict[str, Any]:
    same = {"records": counts.records, "bytes": counts.bytes, "batches": counts.batches, "crc_sum": counts.crc_sum}
    shown = dict.fromkeys(("produced", "live", "replica", "loaded"), same) | stages
    findings = [] if status == "exact" else [{"text": f"it is {status}"}]
    return {
        "topic": "clicks",
        "hour": name,
        "status": status,
        "stages": {stage: found for stage, found in shown.items() if found is not None},
        "findings": findings,
    }


def report(*hours: dict[str, Any], **changes: Any) -> dict[str, Any]:
    cluster = {"complete": True, "error": None, "events": 5}
    return {"complete": True, "hours": list(hours), "clusters": {"hub": cluster}, "routes_error": None} | changes


def judge(document: dict[str, Any], state: TableState, **changes: Any) -> list[HourVerdict]:
    settings: dict[str, Any] = {"now_ms": NOW_MS, "grace_ms": 900_000, "without": (), "accepted": (), "valid": {}}
    return judge_hours(document, "clicks", state, **settings | changes)


def test_an_exact_hour_gets_a_marker_that_names_its_commit_and_witnesses(state: TableState) -> None:
    (verdict,) = judge(report(hour()), state)
    assert verdict.why == ""
    assert verdict.marker is not None
    assert (verdict.marker.commit, verdict.marker.counts, verdict.marker.verdict) == (1, FULL, "exact")
    assert verdict.marker.witnesses == dict.fromkeys(("produced", "live", "replica", "loaded"), sums(10))
    assert verdict.marker.accepted_by is None


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (report(hour(produced=None)), "never reported by produced"),
        (report(hour(loaded=None)), "never reported by loaded"),
        (report(hour(status="pending")), "under way"),
        (report(hour(status="recompressed")), "recompressed: it is recompressed"),
        (report(hour(status="explained")), "explained"),
        (report(hour(status="missing")), "missing"),
        (report(hour(counts=Counts(9, 700, 2, 77))), "does not know the counts of commit 1"),
        (report(hour(counts=Counts(10, 700, 2, 78))), "does not know the counts of commit 1"),
        (
            report(hour(), complete=False, clusters={"east": {"complete": False, "error": "refused", "events": 5}}),
            "the audit has not read all: east: refused",
        ),
        (report(hour(), complete=False, routes_error="no answer"), "the mirror's table: no answer"),
        # A live cluster whose events are gone is read to its end at once: no record of it would be missed.
        (
            report(hour(), clusters={"west": {"complete": True, "error": None, "events": 0}}),
            "west: nothing in it has reported counts yet",
        ),
        # Exact partition by partition, but one of them has no replica yet, or producers that do not count.
        (report(hour(produced=sums(12), live=sums(12))), "produced, live and loaded have different sums"),
        (report(hour(produced=sums(8))), "produced and loaded have different sums"),
    ],
)
def test_whatever_is_not_known_leaves_the_hour_without_a_marker(
    state: TableState, document: dict[str, Any], why: str
) -> None:
    (verdict,) = judge(document, state)
    assert verdict.marker is None
    assert why in verdict.why


def test_an_hour_is_judged_after_its_grace_alone(state: TableState) -> None:
    assert judge(report(hour()), state, now_ms=HOUR + HOUR_MS + 899_999) == []
    assert judge(report(hour()), state, now_ms=HOUR + HOUR_MS + 900_000) != []


@pytest.mark.parametrize("status", ["recompressed", "explained", "changed", "extra", "missing", "quarantined"])
def test_a_difference_can_be_accepted_by_name(state: TableState, status: str) -> None:
    (verdict,) = judge(report(hour(status=status)), state, accepted=[ACCEPTED])
    assert verdict.marker is not None
    assert (verdict.marker.accepted_by, verdict.marker.reason) == ("ann", ACCEPTED.reason)
    assert verdict.marker.findings == (f"it is {status}",)


@pytest.mark.parametrize("status", ["pending", "unknown"])
def test_an_hour_without_verdict_cannot_be_accepted(state: TableState, status: str) -> None:
    (verdict,) = judge(report(hour(status=status)), state, accepted=[ACCEPTED])
    assert verdict.marker is None
    assert f"it is {status}" in verdict.why


def test_an_hour_without_word_names_the_witness(state: TableState) -> None:
    witness = {
        "name": "the broker of hub",
        "reason": "never reported clicks-0",
        "cluster": "hub",
        "partition": "clicks-0",
    }
    (verdict,) = judge(report(hour(status="unknown") | {"missing_witnesses": [witness]}), state)
    assert verdict.why == "unknown; the broker of hub: never reported clicks-0; it is unknown"


def test_stages_beside_the_way_need_not_have_the_sums_of_the_table(tmp_path: Path, state: TableState) -> None:
    """A group that began to count later, and one mirror that was started again, count other batches."""
    beside: dict[str, Any] = {"consumed:billing": sums(12), "mirrored": sums(14), "stored": sums(10) | {"crc_sum": 0}}
    (verdict,) = judge(report(hour(**beside)), state)
    assert verdict.marker is not None
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    verdicts = judge(report(hour()), state)
    publish_markers(files, layout, state, verdicts, "r7", NOW_MS)
    valid = valid_markers(state, read_markers(files, layout))
    (later,) = judge(report(hour(**beside)), state, valid=valid)
    assert later.superseded == 0


def test_batches_that_the_broker_stamped_are_those_that_were_produced(state: TableState) -> None:
    (verdict,) = judge(report(hour(produced=sums(10) | {"crc_sum": 5})), state)
    assert verdict.marker is not None
    (verdict,) = judge(report(hour(live=sums(10) | {"crc_sum": 5})), state)
    assert verdict.marker is None


@pytest.mark.parametrize("status", ["pending", "exact"])
def test_what_is_not_known_cannot_be_accepted(state: TableState, status: str) -> None:
    (verdict,) = judge(report(hour(status=status, counts=Counts(9, 1, 1, 1))), state, accepted=[ACCEPTED])
    assert verdict.marker is None


def test_a_witness_can_be_done_without_by_name(state: TableState) -> None:
    (verdict,) = judge(report(hour(produced=None)), state, without=["produced"])
    assert verdict.marker is not None
    assert "produced" not in verdict.marker.witnesses


def test_an_hour_with_records_in_quarantine_is_never_exact(state: TableState) -> None:
    batch = AsideBatch(base_offset=3, window_start_ms=HOUR, records=2, bytes=9, crc=1, aside=1)
    assert state.last is not None
    file = replace(state.last.files[0], path="quarantine/0-3-r1-0-1-1.avro", hour_ms=None, records=1, batches=(batch,))
    aside = replace(state, files={file.path: file})
    (verdict,) = judge(report(hour()), aside)  # an audit that knows of no quarantine
    assert "1 records are set aside" in verdict.why
    (verdict,) = judge(report(hour(status="quarantined")), aside, accepted=[ACCEPTED])
    assert verdict.marker is not None
    assert verdict.marker.quarantined == 1


def test_an_hour_waits_for_the_hour_before(state: TableState) -> None:
    """Its batches may have records of this hour."""
    counts = {**state.counts, (0, HOUR + HOUR_MS): FULL}
    first, second = judge(report(hour(status="missing"), hour(LATER)), replace(state, counts=counts))
    assert (first.marker, second.marker) == (None, None)
    assert "the hour before" in second.why


def test_an_accepted_hour_holds_back_no_later_one(tmp_path: Path, state: TableState) -> None:
    """The acceptance is given once, and the next hour is over later."""
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    counts = {**state.counts, (0, HOUR + HOUR_MS): FULL}
    state = replace(state, counts=counts)
    lost = hour(status="missing", produced=sums(11), live=sums(11))
    verdicts = judge(report(lost, hour(LATER)), state, accepted=[ACCEPTED], now_ms=HOUR + 2 * HOUR_MS)
    publish_markers(files, layout, state, verdicts, "r7", NOW_MS)
    valid = valid_markers(state, read_markers(files, layout))
    assert [marker.accepted_by for marker in valid.values()] == ["ann"]
    _, later = judge(report(lost, hour(LATER)), state, valid=valid)
    assert later.marker is not None
    assert later.marker.accepted_by is None
    more = hour(status="missing", produced=sums(12), live=sums(12))
    first, later = judge(report(more, hour(LATER)), state, valid=valid)
    assert (first.superseded, later.marker) == (1, None)


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        ("pending", {"produced": sums(12), "live": sums(12), "replica": sums(12)}),
        ("missing", {"produced": sums(12), "live": sums(12)}),
        ("changed", {"live": sums(10) | {"crc_sum": 5}}),
    ],
)
def test_late_data_that_the_table_lacks_supersede_a_marker(
    tmp_path: Path, state: TableState, status: str, changes: Any
) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    folder = tmp_path / "clicks/hourly/2026/01/01/10"

    def run(document: dict[str, Any]) -> dict[int, Any]:
        valid = valid_markers(state, read_markers(files, layout))
        verdicts = judge(document, state, valid=valid)
        return publish_markers(files, layout, state, verdicts, "r7", NOW_MS)[0]

    assert list(run(report(hour()))) == [HOUR]
    unknown = report(hour(status=status, **changes), complete=False, routes_error="no answer")
    assert list(run(unknown)) == [HOUR]  # nothing is known, and nothing is taken back
    fewer = report(hour(status="missing", produced=sums(9)))
    assert list(run(fewer)) == [HOUR]
    for _ in range(2):
        assert run(report(hour(status=status, **changes))) == {}
        assert {path.name for path in folder.iterdir()} == {"_COMPLETE", "_REOPENED.2"}
        assert valid_markers(state, read_markers(files, layout)) == {}
    assert run(report(hour()))[HOUR].generation == 2
    behind = HourVerdict(hour_ms=HOUR, hour=NAME, marker=None, why="pending", superseded=1)  # of a publisher that slept
    assert publish_markers(files, layout, state, [behind], "r8", NOW_MS)[0][HOUR].generation == 2


def test_an_hour_of_the_table_that_the_audit_does_not_know_is_not_complete(state: TableState) -> None:
    counts = {**state.counts, **{(0, HOUR + number * HOUR_MS): FULL for number in (-1, 1, 2)}}
    verdicts = judge(report(hour(), hour("2026-01-01T12:00:00Z")), replace(state, counts=counts))
    assert [(verdict.hour[11:13], verdict.marker is not None) for verdict in verdicts] == [
        ("10", True),
        ("11", False),
        ("12", False),
    ]
    assert verdicts[1].why == "the audit has no counts of it"


def test_a_file_that_is_no_marker_is_named(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit(FULL)
    table.complete(lambda: report(hour()))
    (table.folder / "_COMPLETE").write_text("{}")
    with pytest.raises(ManifestError, match="_COMPLETE: is not a marker of a complete hour"):
        table.complete(lambda: report(hour()))


def test_a_table_whose_windows_do_not_divide_an_hour_has_no_complete_hours(state: TableState) -> None:
    assert state.last is not None
    (verdict,) = judge(report(hour()), replace(state, last=replace(state.last, window_ms=7_000_000)))
    assert "does not divide an hour" in verdict.why


def test_late_data_open_a_new_generation_and_change_no_marker(tmp_path: Path, state: TableState) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    folder = tmp_path / "clicks/hourly/2026/01/01/10"

    def run(document: dict[str, Any], table: TableState) -> set[str]:
        valid = valid_markers(table, read_markers(files, layout))
        publish_markers(files, layout, table, judge(document, table, valid=valid), "r7", NOW_MS)
        return {path.name for path in folder.iterdir()}

    assert run(report(hour()), state) == {"_COMPLETE"}
    first = (folder / "_COMPLETE").read_bytes()
    assert run(report(hour()), state) == {"_COMPLETE"}
    more = Counts(12, 900, 3, 80)
    late = replace(state, counts={**state.counts, (0, HOUR): Counts(6, 500, 2, 73)})
    assert run(report(hour(status="pending")), late) == {"_COMPLETE", "_REOPENED.2"}
    assert run(report(hour(counts=more)), late) == {"_COMPLETE", "_REOPENED.2", "_COMPLETE.2"}
    assert run(report(hour(counts=more)), late) == {"_COMPLETE", "_REOPENED.2", "_COMPLETE.2"}
    assert (folder / "_COMPLETE").read_bytes() == first
    (hour_markers,) = read_markers(files, layout).values()
    assert [(marker.generation, marker.counts) for marker in hour_markers.markers] == [(1, FULL), (2, more)]


def test_folders_of_several_formats_all_have_the_markers_of_an_hour(tmp_path: Path, state: TableState) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    hourly, hive = (tmp_path / "clicks" / hour_folder(HOUR, path_format) for path_format in PATH_FORMATS)
    assert state.last is not None
    old = replace(state.last.files[0], path=f"{hour_folder(HOUR, 'hourly')}/0-0-r1-0-1-0.avro", hour_ms=HOUR)
    new = replace(old, path=f"{hour_folder(HOUR, 'hive')}/0-10-r2-0-1-0.avro")

    def run(document: dict[str, Any], table: TableState) -> list[set[str]]:
        publish_markers(files, layout, table, judge(document, table), "r7", NOW_MS)
        return [{path.name for path in folder.iterdir()} if folder.exists() else set() for folder in (hourly, hive)]

    assert run(report(hour()), replace(state, files={old.path: old})) == [{"_COMPLETE"}, set()]
    both = {old.path: old, new.path: new}
    assert run(report(hour()), replace(state, files=both)) == [{"_COMPLETE"}, {"_COMPLETE"}]
    assert (hive / "_COMPLETE").read_bytes() == (hourly / "_COMPLETE").read_bytes()
    more = Counts(12, 900, 3, 80)
    late = replace(state, files={new.path: new}, counts={**state.counts, (0, HOUR): Counts(6, 500, 2, 73)})
    assert run(report(hour(counts=more)), late) == [{"_COMPLETE", "_REOPENED.2", "_COMPLETE.2"}] * 2
    (hive / "_COMPLETE.2").unlink()
    assert run(report(hour(counts=more)), late) == [{"_COMPLETE", "_REOPENED.2", "_COMPLETE.2"}] * 2
    (hour_markers,) = read_markers(files, layout).values()
    assert [marker.generation for marker in hour_markers.markers] == [1, 2]


def test_an_hour_without_files_has_its_marker_where_the_last_load_names_folders(
    tmp_path: Path, state: TableState
) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    assert state.last is not None
    of_hive = replace(state, files={}, last=replace(state.last, path_format="hive"))
    publish_markers(files, layout, of_hive, judge(report(hour()), of_hive), "r7", NOW_MS)
    assert (tmp_path / "clicks" / hour_folder(HOUR, "hive") / "_COMPLETE").exists()
    assert not (tmp_path / "clicks/hourly").exists()


def test_counts_that_the_table_no_longer_keeps_reopen_nothing(tmp_path: Path, state: TableState) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    publish_markers(files, layout, state, judge(report(hour()), state), "r7", NOW_MS)
    assert state.last is not None
    counts = {(0, HOUR + COUNTS_KEPT_MS + HOUR_MS): FULL}
    newer = replace(state, counts=counts, last=replace(state.last, created_ms=HOUR + COUNTS_KEPT_MS + 2 * HOUR_MS))
    valid, reopened = publish_markers(files, layout, newer, [], "r8", NOW_MS)
    assert (list(valid), reopened) == ([HOUR], [])


def test_a_window_of_the_future_hides_no_late_data(tmp_path: Path, state: TableState) -> None:
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "clicks")
    publish_markers(files, layout, state, judge(report(hour()), state), "r7", NOW_MS)
    assert state.last is not None
    counts = {**state.counts, (0, HOUR): Counts(5, 400, 2, 71), (0, HOUR + 100 * COUNTS_KEPT_MS): FULL}
    later = replace(state, counts=counts, last=replace(state.last, created_ms=NOW_MS))
    assert recent_counts(counts, later.last or state.last) == counts
    assert publish_markers(files, layout, later, [], "r8", NOW_MS) == ({}, [HOUR])


def test_quarantined_records_of_unknown_hours_leave_no_hour_complete(state: TableState) -> None:
    """Manifests of version 1 counted them as loaded, and do not say when they are from."""
    assert state.last is not None
    file = replace(state.last.files[0], path="quarantine/0-3-r1-0-1-1.avro", hour_ms=None, records=2)
    aside = replace(state, files={file.path: file})
    (verdict,) = judge(report(hour()), aside)
    assert verdict.marker is None
    assert "2 records are set aside, and no commit says of which hours" in verdict.why
    (verdict,) = judge(report(hour()), aside, accepted=[ACCEPTED])
    assert verdict.marker is not None
    assert verdict.marker.accepted_by == "ann"


class Table:
    """A table of one commit, and later ones with late data of the hour."""

    def __init__(self, root: Path) -> None:
        self.files, self.layout = LocalFileSystem(), topic_layout(str(root), "clicks")
        self.folder = root / "clicks/hourly/2026/01/01/10"

    def commit(self, counts: Counts) -> None:
        head = read_head(self.files, self.layout)
        made = manifest_after(head, run_id=f"r{head.next_sequence}")
        commit(self.files, self.layout, replace(made, counts={(0, HOUR): counts}), head)

    def complete(self, ask: Any, now_ms: int = NOW_MS) -> set[str]:
        settings: dict[str, Any] = {"grace_ms": 900_000, "without": (), "accepted": ()}
        complete_hours(self.files, self.layout, ask, "clicks", "r9", now_ms=now_ms, **settings)
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()


def test_a_commit_between_question_and_marker_leaves_no_valid_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_while_loading() -> Any:
        table.commit(Counts(1, 1, 1, 1))
        return report(hour())

    table = Table(tmp_path / "question")
    table.commit(FULL)
    assert table.complete(ask_while_loading) == set()

    table = Table(tmp_path / "marker")
    table.commit(FULL)
    publish, loads = publish_markers, [Counts(1, 1, 1, 1)]

    def publish_after_a_load(*given: Any) -> Any:
        if loads:
            table.commit(loads.pop())
        return publish(*given)

    monkeypatch.setattr(complete_hours_module, "publish_markers", publish_after_a_load)
    assert table.complete(lambda: report(hour())) == {"_COMPLETE", "_REOPENED.2"}


def test_a_clock_ahead_of_the_file_system_ends_no_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path)
    table.commit(FULL)
    monkeypatch.setattr(complete_hours_module, "filesystem_now_ms", lambda *given: HOUR + 60_000)
    assert table.complete(lambda: report(hour())) == set()
