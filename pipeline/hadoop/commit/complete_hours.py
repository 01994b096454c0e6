"""Markers of complete hours, beside the hour's data: what they say, when they may be written, and their files.

`_COMPLETE` says that the audit found the hour's counts equal from the producers to the table, or that a person accepted
the difference by name. Files are only added, never changed or removed:

    _COMPLETE       generation 1 of the hour, with the commit that it rests on
    _REOPENED.2     late data came: generation 1 is superseded
    _COMPLETE.2     generation 2, complete with the late data

Invariant: a marker is written only for counts that the audit compared and the table has, both. Whatever is not known
leaves the hour without a marker (`judge_hours`, which is pure).
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.hadoop.commit.checkpoints import read_state
from pipeline.hadoop.commit.layout import TopicLayout, hour_folder, hour_of_folder
from pipeline.hadoop.commit.manifest import set_aside
from pipeline.hadoop.commit.runs import filesystem_now_ms
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS, TableState, newest_window_ms
from pipeline.hadoop.files.doors import FileSystem, PathExistsError
from pipeline.records.tally import HOUR_MS, NOTHING, Counts, window_start

COMPLETE: Final = "_COMPLETE"
REOPENED: Final = "_REOPENED"
WITNESSES: Final = ("produced", "live", "loaded")
_COUNTED: Final = ("records", "bytes", "batches", "crc_sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Difference of an hour that a person accepts. `hour` is as in the audit's report, `2026-01-31T10:00:00Z`."""

    hour: str
    accepted_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Content of a marker of a complete hour. `counts` are those of the table; `verdict` is the audit's status."""

    topic: str
    hour: str
    generation: int
    commit: int
    records: int
    bytes: int
    batches: int
    crc_sum: int
    quarantined: int
    verdict: str
    findings: tuple[str, ...]
    witnesses: tuple[str, ...]
    accepted_by: str | None
    reason: str | None
    written_ms: int

    @property
    def counts(self) -> Counts:
        """Counts of the table that the marker rests on."""
        return Counts(self.records, self.bytes, self.batches, self.crc_sum)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourVerdict:
    """An hour that is over: the marker that it deserves, without its generation; or why it gets none."""

    hour_ms: int
    hour: str
    marker: Marker | None
    why: str


def judge_hours(
    report: Mapping[str, Any],
    topic: str,
    state: TableState,
    *,
    now_ms: int,
    grace_ms: int,
    without: Collection[str],
    accepted: Sequence[Acceptance],
) -> list[HourVerdict]:
    """Judge each hour of a topic that ended `grace_ms` ago by the audit's report (`/v1/report`) and the table.

    `without` names witnesses (of WITNESSES) that are not asked for. Pure.
    """
    unknown = _unknown_clusters(report)
    hours = {
        start: hour
        for hour in report["hours"]
        if hour["topic"] == topic and (start := _start_ms(hour["hour"])) is not None
    }
    by_name = {acceptance.hour: acceptance for acceptance in accepted}
    refusals = {start: unknown or _refusal(hour, state, start, without, by_name) for start, hour in hours.items()}
    verdicts = []
    for start, hour in sorted(hours.items()):
        if start + HOUR_MS + grace_ms > now_ms:
            continue
        why = refusals[start]
        if not why and refusals.get(start - HOUR_MS):
            why = "the hour before is not complete, and batches that begin in it may have records of this hour"
        marker = None if why else _marker(topic, hour, state, start, by_name.get(hour["hour"]), now_ms)
        verdicts.append(HourVerdict(hour_ms=start, hour=hour["hour"], marker=marker, why=why))
    return verdicts


def complete_hours(
    files: FileSystem,
    layout: TopicLayout,
    ask: Callable[[], Mapping[str, Any]],
    topic: str,
    run_id: str,
    *,
    now_ms: int,
    grace_ms: int,
    without: Collection[str],
    accepted: Sequence[Acceptance],
) -> tuple[list[HourVerdict], dict[int, Marker]]:
    """Judge the hours and write their markers. Return the verdicts, and the valid marker of each complete hour.

    `ask` returns the audit's report. The table is read after it, so that the audit's counts are none of later commits,
    and once more after the markers were written: what was committed meanwhile reopens its hours. An hour is over once
    it is for the file system's clock as well as for `now_ms`.
    Raises what `ask` raises, ManifestError, StorageError.
    """
    report = ask()
    now_ms = min(now_ms, filesystem_now_ms(files, layout, run_id))
    state = read_state(files, layout)
    verdicts = judge_hours(report, topic, state, now_ms=now_ms, grace_ms=grace_ms, without=without, accepted=accepted)
    publish_markers(files, layout, state, verdicts, run_id, now_ms)
    valid, _ = publish_markers(files, layout, read_state(files, layout), (), run_id, now_ms)
    return verdicts, valid


def read_markers(files: FileSystem, layout: TopicLayout) -> dict[int, list[Marker]]:
    """Return the markers of complete hours by hour, oldest generation first. Raises StorageError."""
    found: dict[int, list[Marker]] = {}
    for info in files.list_files(f"{layout.topic_root}/hourly", recursive=True):
        folder, _, name = info.path.rpartition("/")
        hour_ms = hour_of_folder(folder)
        if hour_ms is not None and (name == COMPLETE or name.startswith(f"{COMPLETE}.")):
            document = json.loads(files.read(info.path))
            lists = {key: tuple(document[key]) for key in ("findings", "witnesses")}
            found.setdefault(hour_ms, []).append(Marker(**document | lists))
    return {hour_ms: sorted(markers, key=lambda marker: marker.generation) for hour_ms, markers in found.items()}


def publish_markers(
    files: FileSystem, layout: TopicLayout, state: TableState, verdicts: Iterable[HourVerdict], run_id: str, now_ms: int
) -> tuple[dict[int, Marker], list[int]]:
    """Write the markers that are missing. Return the valid marker of each complete hour, and hours with late data.

    An hour whose counts in the table are not those of its newest marker is reopened first, whatever the audit says.
    Several publishers do no harm: a marker that another one wrote stays. Raises StorageError.
    """
    known = read_markers(files, layout)
    reopened = []
    for hour_ms, markers in sorted(known.items()):
        if not is_valid(state, hour_ms, markers[-1]):
            reopened.append(hour_ms)
            document = {"generation": markers[-1].generation + 1, "commit": state.sequence, "written_ms": now_ms}
            name = f"{REOPENED}.{markers[-1].generation + 1}"
            _write(files, layout, hour_ms, name, document, run_id)
    valid = {hour_ms: markers[-1] for hour_ms, markers in known.items() if hour_ms not in reopened}
    for verdict in verdicts:
        if verdict.marker is None or verdict.hour_ms in valid:
            continue
        generation = known[verdict.hour_ms][-1].generation + 1 if verdict.hour_ms in known else 1
        marker = replace(verdict.marker, generation=generation)
        name = COMPLETE if generation == 1 else f"{COMPLETE}.{generation}"
        _write(files, layout, verdict.hour_ms, name, asdict(marker), run_id)
        valid[verdict.hour_ms] = marker
    return valid, [hour_ms for hour_ms in reopened if hour_ms not in valid]


def is_valid(state: TableState, hour_ms: int, marker: Marker) -> bool:
    """True if the table has the counts of the marker, or keeps no counts of so long ago."""
    oldest_ms = 0 if state.last is None else newest_window_ms(state.counts, state.last) - COUNTS_KEPT_MS
    return hour_ms < oldest_ms + HOUR_MS or counts_of(state, hour_ms) == marker.counts


def _unknown_clusters(report: Mapping[str, Any]) -> str:
    """Return which witnesses the whole report lacks; an empty text if it has all."""
    if report["complete"]:
        return ""
    missing = [
        f"{name}: {state['error'] or 'not read to its end'}"
        for name, state in report["clusters"].items()
        if not state["complete"]
    ]
    if report["routes_error"]:
        missing.append(f"the mirror's table: {report['routes_error']}")
    return "the audit has not read all: " + "; ".join(missing)


def _refusal(
    hour: Mapping[str, Any],
    state: TableState,
    hour_ms: int,
    without: Collection[str],
    accepted: Mapping[str, Acceptance],
) -> str:
    """Return why an hour is not complete; an empty text if it is."""
    stages = hour["stages"]
    silent = [stage for stage in WITNESSES if stage not in stages and stage not in without]
    if silent:
        return f"never reported by {', '.join(silent)}"
    if state.last is None or HOUR_MS % state.last.window_ms:
        return "window.ms of the load does not divide an hour"
    if hour["status"] == "pending":
        return "records are under way"
    counted = Counts(*(stages["loaded"][name] for name in _COUNTED))
    if counted != counts_of(state, hour_ms):
        return f"the audit does not know the counts of commit {state.sequence}"
    quarantined = _quarantined(state, hour_ms)
    if hour["hour"] in accepted:
        return ""
    if hour["status"] != "exact":
        return f"{hour['status']}: " + "; ".join(finding["text"] for finding in hour["findings"])
    if quarantined:
        return f"quarantined: {quarantined} records are set aside"
    unplaced = _unplaced(state)
    return f"quarantined: {unplaced} records are set aside, and no commit says of which hours" if unplaced else ""


def _marker(
    topic: str, hour: Mapping[str, Any], state: TableState, hour_ms: int, acceptance: Acceptance | None, now_ms: int
) -> Marker:
    counts = counts_of(state, hour_ms)
    is_exact = hour["status"] == "exact" and not _quarantined(state, hour_ms) and not _unplaced(state)
    return Marker(
        topic=topic,
        hour=hour["hour"],
        generation=1,
        commit=state.sequence,
        records=counts.records,
        bytes=counts.bytes,
        batches=counts.batches,
        crc_sum=counts.crc_sum,
        quarantined=_quarantined(state, hour_ms),
        verdict=hour["status"],
        findings=tuple(finding["text"] for finding in hour["findings"]),
        witnesses=tuple(hour["stages"]),
        accepted_by=None if is_exact or acceptance is None else acceptance.accepted_by,
        reason=None if is_exact or acceptance is None else acceptance.reason,
        written_ms=now_ms,
    )


def counts_of(state: TableState, hour_ms: int) -> Counts:
    """Return the counts of the table for batches that begin in the hour."""
    return sum((c for (_, start), c in state.counts.items() if window_start(start, HOUR_MS) == hour_ms), NOTHING)


def _quarantined(state: TableState, hour_ms: int) -> int:
    aside = set_aside(state.data_files(quarantined=True))
    return sum(records for (_, start), records in aside.items() if window_start(start, HOUR_MS) == hour_ms)


def _unplaced(state: TableState) -> int:
    """Return the number of records in quarantine whose batches are not listed, as manifests of version 1 list none."""
    aside = state.data_files(quarantined=True)
    return sum(max(0, file.records - sum(batch.aside for batch in file.batches)) for file in aside)


def _start_ms(hour: str) -> int | None:
    """Return the begin of an hour of the report; None for an hour of no calendar."""
    try:
        return int(datetime.strptime(hour, "%Y-%m-%dT%H:00:00Z").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def _write(
    files: FileSystem, layout: TopicLayout, hour_ms: int, name: str, document: Mapping[str, Any], run_id: str
) -> None:
    """Write a marker whole or not at all, unless there is one."""
    folder = layout.absolute(hour_folder(hour_ms))
    content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    with suppress(PathExistsError):
        files.publish_exclusive(f"{folder}/{name}", content, temporary=f"{folder}/.{name}.{run_id}")
