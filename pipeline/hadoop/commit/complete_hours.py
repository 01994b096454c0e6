"""Markers of complete hours, beside the hour's data: what they say, when they may be written, and their files.

`_COMPLETE` says that the audit found the hour's counts equal from the producers to the table, or that a person accepted
the difference by name. Files are only added, never changed or removed:

    _COMPLETE       generation 1 of the hour, with the commit that it rests on
    _REOPENED.2     late data came: generation 1 is superseded
    _COMPLETE.2     generation 2, complete with the late data

Invariants:

A. A marker is written only for counts that the audit compared and the table has, both. Whatever is not known leaves
   the hour without a marker (`judge_hours`, which is pure).
B. The newest marker of an hour is valid until the table has other counts, or a stage of the audit counts more.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from pipeline.hadoop.commit.checkpoints import read_state
from pipeline.hadoop.commit.layout import TopicLayout
from pipeline.hadoop.commit.manifest import Manifest, ManifestError, set_aside
from pipeline.hadoop.commit.marker_files import COMPLETE, REOPENED, MarkerFiles
from pipeline.hadoop.commit.runs import filesystem_now_ms
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS, TableState, newest_window_ms
from pipeline.hadoop.files.doors import FileSystem
from pipeline.records.tally import HOUR_MS, NOTHING, Counts, window_start

WITNESSES: Final = ("produced", "live", "loaded")
ON_THE_WAY: Final = ("produced", "live", "replica", "loaded")
"""Stages through which all records come before they are in the table. Groups, mirrors and files read back stand beside
the way: their verdicts count, and their sums do not."""
MAX_TEXTS: Final = 10
"""Sentences in the reason of one hour."""
_HOUR_NAME: Final = "%Y-%m-%dT%H:00:00Z"
_COUNTED: Final = ("records", "bytes", "batches", "crc_sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Difference of an hour that a person accepts. `hour` is as in the audit's report, `2026-01-31T10:00:00Z`."""

    hour: str
    accepted_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Content of a marker of a complete hour. `counts` are those of the table; `verdict` is the audit's status.

    `witnesses` are the stages of the audit's report with their counts.
    """

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
    witnesses: Mapping[str, Mapping[str, int]]
    accepted_by: str | None
    reason: str | None
    written_ms: int

    @property
    def counts(self) -> Counts:
        """Counts of the table that the marker rests on."""
        return Counts(self.records, self.bytes, self.batches, self.crc_sum)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHours:
    """Sums of a table by hour, for batches that begin in the hour. `aside` counts records in quarantine.

    Hours before `oldest_ms` may have no counts any more.
    """

    last: Manifest | None
    counts: Mapping[int, Counts]
    aside: Mapping[int, int]
    unplaced: int
    """Records in quarantine whose batches are not listed, as manifests of version 1 list none."""
    oldest_ms: int

    @classmethod
    def of(cls, state: TableState) -> Self:
        """Return the sums of a state."""
        counts: dict[int, Counts] = {}
        for (_, start), windows in state.counts.items():
            hour_ms = window_start(start, HOUR_MS)
            counts[hour_ms] = counts.get(hour_ms, NOTHING) + windows
        quarantined = state.data_files(quarantined=True)
        aside: dict[int, int] = {}
        for (_, start), records in set_aside(quarantined).items():
            hour_ms = window_start(start, HOUR_MS)
            aside[hour_ms] = aside.get(hour_ms, 0) + records
        return cls(
            last=state.last,
            counts=counts,
            aside=aside,
            unplaced=sum(max(0, file.records - sum(batch.aside for batch in file.batches)) for file in quarantined),
            oldest_ms=0 if state.last is None else newest_window_ms(state.counts, state.last) - COUNTS_KEPT_MS,
        )

    def at(self, hour_ms: int) -> Counts:
        """Return the counts of an hour."""
        return self.counts.get(hour_ms, NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourMarkers:
    """Markers of one hour, oldest generation first. `reopened` is the last generation that was begun; 0 if none was."""

    markers: tuple[Marker, ...] = ()
    reopened: int = 0

    @property
    def generation(self) -> int:
        """The newest generation, complete or not; 0 before the first."""
        return max([self.reopened, *(marker.generation for marker in self.markers)])

    def valid(self, table: TableHours, hour_ms: int) -> Marker | None:
        """Return the marker that holds: the newest one, if the table has its counts, or keeps none of so long ago."""
        if not self.markers or self.reopened > self.markers[-1].generation:
            return None
        is_forgotten = hour_ms < table.oldest_ms + HOUR_MS
        return self.markers[-1] if is_forgotten or table.at(hour_ms) == self.markers[-1].counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HourVerdict:
    """An hour that is over: the marker that it deserves, without its generation; or why it gets none.

    `superseded`: generation of the hour's valid marker, if a stage counts more than that says; else 0.
    """

    hour_ms: int
    hour: str
    marker: Marker | None
    why: str
    superseded: int = 0


def judge_hours(
    report: Mapping[str, Any],
    topic: str,
    state: TableState,
    *,
    now_ms: int,
    grace_ms: int,
    without: Collection[str],
    accepted: Sequence[Acceptance],
    valid: Mapping[int, Marker],
) -> list[HourVerdict]:
    """Judge each hour of a topic that ended `grace_ms` ago by the audit's report (`/v1/report`) and the table.

    `without` names witnesses (of WITNESSES) that are not asked for. `valid` has the valid markers of hours. Pure.
    """
    unknown = _unknown_clusters(report)
    table = TableHours.of(state)
    hours = {
        start: hour
        for hour in report["hours"]
        if hour["topic"] == topic and (start := start_of(hour["hour"])) is not None
    }
    by_name = {acceptance.hour: acceptance for acceptance in accepted}
    refusals = {start: unknown or _refusal(hour, table, start, without, by_name) for start, hour in hours.items()}
    first = min(hours, default=None)
    for start, counts in table.counts.items():
        if first is not None and start > first and start not in hours and counts != NOTHING:
            refusals[start] = unknown or "the audit has no counts of it"
    verdicts = []
    for start, why in sorted(refusals.items()):
        if start + HOUR_MS + grace_ms > now_ms:
            continue
        before = start - HOUR_MS
        is_settled = not refusals.get(before) or (
            not unknown and before in hours and _is_accepted(valid.get(before), hours[before])
        )
        if not why and not is_settled:
            why = "the hour before is not complete, and batches that begin in it may have records of this hour"
        hour = hours.get(start)
        marker = None
        if hour is not None and not why:
            acceptance = by_name.get(hour["hour"]) if _difference(hour, table, start, without) else None
            marker = _marker(topic, hour, table, start, acceptance, now_ms)
        superseded = 0
        if hour is not None and not unknown and start in valid and _counts_more(hour, valid[start]):
            superseded = valid[start].generation
        verdicts.append(HourVerdict(hour_ms=start, hour=name_of(start), marker=marker, why=why, superseded=superseded))
    return verdicts


def knows_table(report: Mapping[str, Any], topic: str, state: TableState) -> bool:
    """True if the counts of LOADED are those of the table in all hours of the report. Pure."""
    table = TableHours.of(state)
    hours = {start_of(hour["hour"]): hour["stages"] for hour in report["hours"] if hour["topic"] == topic}
    return all(
        table.at(start) == (_counts(stages["loaded"]) if "loaded" in stages else NOTHING)
        for start, stages in hours.items()
        if start is not None
    )


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
    verdicts = judge_hours(
        report,
        topic,
        state,
        now_ms=now_ms,
        grace_ms=grace_ms,
        without=without,
        accepted=accepted,
        valid=valid_markers(state, read_markers(files, layout)),
    )
    publish_markers(files, layout, state, verdicts, run_id, now_ms)
    valid, _ = publish_markers(files, layout, read_state(files, layout), (), run_id, now_ms)
    return verdicts, valid


def read_markers(files: FileSystem, layout: TopicLayout) -> dict[int, HourMarkers]:
    """Return the markers of hours. Raises StorageError, and ManifestError for a file that is no marker."""
    return _read(MarkerFiles.listed(files, layout))


def _read(listed: MarkerFiles) -> dict[int, HourMarkers]:
    complete: dict[int, list[Marker]] = {}
    reopened: dict[int, list[int]] = {}
    for hour_ms, names in listed.written.items():
        for name in names:
            kind, _, generation = name.partition(".")
            if kind == REOPENED:
                reopened.setdefault(hour_ms, []).append(int(generation))
                continue
            path = listed.path(hour_ms, name)
            try:
                document = json.loads(listed.files.read(path))
                complete.setdefault(hour_ms, []).append(Marker(**document | {"findings": tuple(document["findings"])}))
            except (ValueError, KeyError, TypeError) as error:
                raise ManifestError(path, "is not a marker of a complete hour") from error
    return {
        hour_ms: HourMarkers(
            markers=tuple(sorted(complete.get(hour_ms, ()), key=lambda marker: marker.generation)),
            reopened=max(reopened.get(hour_ms, [0])),
        )
        for hour_ms in complete.keys() | reopened.keys()
    }


def valid_markers(state: TableState, known: Mapping[int, HourMarkers]) -> dict[int, Marker]:
    """Return the valid marker of each hour that has one."""
    table = TableHours.of(state)
    found = {hour_ms: markers.valid(table, hour_ms) for hour_ms, markers in known.items()}
    return {hour_ms: marker for hour_ms, marker in found.items() if marker is not None}


def publish_markers(
    files: FileSystem, layout: TopicLayout, state: TableState, verdicts: Sequence[HourVerdict], run_id: str, now_ms: int
) -> tuple[dict[int, Marker], list[int]]:
    """Write the markers that are missing. Return the valid marker of each complete hour, and hours with late data.

    An hour whose counts in the table are not those of its newest marker is reopened first, whatever the audit says, and
    so is one with a marker that the audit superseded.
    Several publishers do no harm: a marker that another one wrote stays. Raises StorageError, ManifestError.
    """
    listed = MarkerFiles.listed(files, layout)
    folders, known = listed.folders(state), _read(listed)
    superseded = {(verdict.hour_ms, verdict.superseded) for verdict in verdicts}
    found = valid_markers(state, known)
    valid = {hour_ms: each for hour_ms, each in found.items() if (hour_ms, each.generation) not in superseded}
    generations = {hour_ms: markers.generation for hour_ms, markers in known.items()}
    reopened = sorted(hour_ms for hour_ms, markers in known.items() if markers.markers and hour_ms not in valid)
    for hour_ms in reopened:
        markers = known[hour_ms]
        if markers.reopened <= markers.markers[-1].generation:
            generations[hour_ms] += 1
            document = {"generation": generations[hour_ms], "commit": state.sequence, "written_ms": now_ms}
            listed.write(state, folders, hour_ms, f"{REOPENED}.{generations[hour_ms]}", document, run_id)
    listed.copy(folders, run_id)
    for verdict in verdicts:
        if verdict.marker is None or verdict.hour_ms in valid:
            continue
        generation = generations.get(verdict.hour_ms, 1)
        marker = replace(verdict.marker, generation=generation)
        name = COMPLETE if generation == 1 else f"{COMPLETE}.{generation}"
        listed.write(state, folders, verdict.hour_ms, name, asdict(marker), run_id)
        valid[verdict.hour_ms] = marker
    return valid, [hour_ms for hour_ms in reopened if hour_ms not in valid]


def _unknown_clusters(report: Mapping[str, Any]) -> str:
    """Return which witnesses the whole report lacks; an empty text if it has all.

    A cluster from which no event was ever read is none: nothing in it counts, or its events are lost.
    """
    missing = [
        f"{name}: {state['error'] or 'nothing in it has reported counts yet'}"
        for name, state in report["clusters"].items()
        if not state["complete"] or not state["events"]
    ]
    if report["routes_error"]:
        missing.append(f"the mirror's table: {report['routes_error']}")
    if not missing and report["complete"]:
        return ""
    return "the audit has not read all: " + "; ".join(missing)


def _refusal(
    hour: Mapping[str, Any],
    table: TableHours,
    hour_ms: int,
    without: Collection[str],
    accepted: Mapping[str, Acceptance],
) -> str:
    """Return why an hour is not complete; an empty text if it is."""
    stages = hour["stages"]
    silent = [stage for stage in WITNESSES if stage not in stages and stage not in without]
    if silent:
        return f"never reported by {', '.join(silent)}"
    if table.last is None or HOUR_MS % table.last.window_ms:
        return "window.ms of the load does not divide an hour"
    if hour["status"] == "pending":
        return "; ".join(["records are under way", *_texts(hour)])
    if hour["status"] == "unknown":
        return "; ".join(["unknown", *_texts(hour)])
    counted = _counts(stages["loaded"])
    if counted != table.at(hour_ms):
        return f"the audit does not know the counts of commit {table.last.sequence}"
    return "" if hour["hour"] in accepted else _difference(hour, table, hour_ms, without)


def _texts(hour: Mapping[str, Any]) -> list[str]:
    """Return what an hour lacks, in sentences: witnesses by name, and findings. Older audits name no witnesses."""
    missing = [f"{each['name']}: {each['reason']}" for each in hour.get("missing_witnesses", ())]
    return list(dict.fromkeys([*missing, *(finding["text"] for finding in hour["findings"])]))[:MAX_TEXTS]


def _difference(hour: Mapping[str, Any], table: TableHours, hour_ms: int, without: Collection[str]) -> str:
    """Return in what way an hour is not exact, an empty text if it is."""
    if hour["status"] != "exact":
        return f"{hour['status']}: " + "; ".join(finding["text"] for finding in hour["findings"])
    if hour_ms in table.aside:
        return f"quarantined: {table.aside[hour_ms]} records are set aside"
    if table.unplaced:
        return f"quarantined: {table.unplaced} records are set aside, and no commit says of which hours"
    # Partitions were compared one by one, each at the stages that reported it.
    others = {stage: sums for stage, sums in hour["stages"].items() if stage in ON_THE_WAY and stage not in without}
    uneven = [stage for stage, sums in others.items() if not _agree(stage, _counts(sums), table.at(hour_ms))]
    if uneven:
        return f"a partition was not counted everywhere: {', '.join(uneven)} and loaded have different sums"
    return ""


def _marker(
    topic: str, hour: Mapping[str, Any], table: TableHours, hour_ms: int, acceptance: Acceptance | None, now_ms: int
) -> Marker:
    """Return the marker of an hour; `acceptance` is that of its difference, if it has one."""
    counts = table.at(hour_ms)
    return Marker(
        topic=topic,
        hour=hour["hour"],
        generation=1,
        commit=0 if table.last is None else table.last.sequence,
        records=counts.records,
        bytes=counts.bytes,
        batches=counts.batches,
        crc_sum=counts.crc_sum,
        quarantined=table.aside.get(hour_ms, 0),
        verdict=hour["status"],
        findings=tuple(finding["text"] for finding in hour["findings"]),
        witnesses={stage: {name: counts[name] for name in _COUNTED} for stage, counts in hour["stages"].items()},
        accepted_by=None if acceptance is None else acceptance.accepted_by,
        reason=None if acceptance is None else acceptance.reason,
        written_ms=now_ms,
    )


def _is_accepted(marker: Marker | None, hour: Mapping[str, Any]) -> bool:
    """True if a person accepted the hour by this marker, and no stage has counted more since."""
    return marker is not None and marker.accepted_by is not None and not _counts_more(hour, marker)


def _counts_more(hour: Mapping[str, Any], marker: Marker) -> bool:
    """True if a stage of the report has as many records as when the marker was written, or more, and other sums.

    A stage that had not reported then is compared with the table. Fewer records prove nothing: events may be lost.
    """
    for stage, sums in hour["stages"].items():
        if stage not in ON_THE_WAY:
            continue
        before = _counts(marker.witnesses[stage]) if stage in marker.witnesses else marker.counts
        now = _counts(sums)
        if now != before and now.records >= before.records:
            return True
    return False


def _agree(stage: str, sums: Counts, loaded: Counts) -> bool:
    """True if a stage of an exact hour counted all partitions. A broker that stamps batches with its own time changes
    the CRCs of what was produced, and nothing else.
    """
    if stage == "produced":
        sums = replace(sums, crc_sum=loaded.crc_sum)
    return sums == loaded


def _counts(sums: Mapping[str, int]) -> Counts:
    return Counts(sums["records"], sums["bytes"], sums["batches"], sums["crc_sum"])


def start_of(hour: str) -> int | None:
    """Return the begin in ms of an hour of the report; None for an hour of no calendar."""
    try:
        return int(datetime.strptime(hour, _HOUR_NAME).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def name_of(hour_ms: int) -> str:
    """Return the name of an hour as in the report. Raises ValueError for an hour of no calendar."""
    return datetime.fromtimestamp(hour_ms / 1000, UTC).strftime(_HOUR_NAME)
