"""Documents of the audit as tables, sentences and CSV, and the exit codes that they mean. Pure."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.cli.terminal import output

STAGES: Final = ("produced", "live", "mirrored", "replica", "consumed", "loaded", "stored")
"""Stages in the order of the way; a stage of a name follows, as `loaded:ROOT`."""
END_OF_HOUR: Final = "the hour"
"""Name of the witness of an hour that is not over. The summary says how many hours are pending."""
MAX_HOURS: Final = 100
"""Hours that are shown without `--all`."""
MAX_LINES: Final = 50
"""Findings, witnesses and watermarks that are shown without `--all`, of each kind."""
EXIT_OF_VERDICT: Final = {"exact": 0, "difference": output.EXIT_NOT_EXACT}
STATUS_OF_LETTER: Final = {
    "e": "exact",
    "r": "recompressed",
    "x": "explained",
    "q": "quarantined",
    "p": "pending",
    "u": "unknown",
    "c": "changed",
    "+": "extra",
    "-": "missing",
}


def exit_code(document: Mapping[str, Any]) -> int:
    """Return the exit code of a verdict: 0 exact, 4 difference, 5 not complete or unknown."""
    return EXIT_OF_VERDICT.get(document["verdict"], output.EXIT_NOT_COMPARED)


def render(document: Mapping[str, Any], topics: Sequence[str] = (), *, show_all: bool = False) -> str:
    """Return the report for people: a line for each topic and hour, differences, what is not known, completeness."""
    hours = document["hours"]
    stages = shown_stages(hours)
    rows = [
        [hour["topic"], hour["hour"], *(_records(hour, stage) for stage in stages), status_text(hour)] for hour in hours
    ]
    lines = [output.table(["TOPIC", "HOUR", *(stage.upper() for stage in stages), "STATUS"], rows)] if rows else []
    findings = [output.printable(finding["text"]) for hour in hours for finding in hour["findings"]]
    lines += _some(findings, "findings", show_all=show_all)
    lines += _some(_witnesses(document), "missing witnesses", show_all=show_all)
    lines += _clusters(document["clusters"])
    lines += _some(_watermarks(document), "topics", show_all=show_all)
    return "\n".join([*lines, *_summary(document, topics, show_all=show_all)])


def shown_stages(hours: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all stages of some hours, in the order of the way."""
    found = {stage for hour in hours for stage in hour["stages"]}

    def place(stage: str) -> tuple[int, str]:
        tier = stage.partition(":")[0]
        return (STAGES.index(tier) if tier in STAGES else len(STAGES), stage)

    return sorted(found, key=place)


def status_text(hour: Mapping[str, Any]) -> str:
    """Return the status of an hour, with the kind of its difference if that says more."""
    kind = hour.get("kind")
    return hour["status"] if kind in (None, hour["status"]) else f"{hour['status']} ({kind})"


def csv_text(document: Mapping[str, Any]) -> str:
    """Return the hours as CSV with headings: verdict, records of each stage, and findings as text."""
    hours = document["hours"]
    stages = shown_stages(hours)
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(
        ["topic", "hour", "status", "kind", *map(output.printable, stages), "missing_witnesses", "findings"]
    )
    for hour in hours:
        writer.writerow(
            [
                output.printable(hour["topic"]),
                hour["hour"],
                hour["status"],
                hour["kind"] or "",
                *("" if (records := _records(hour, stage)) is None else records for stage in stages),
                output.printable("; ".join(each["name"] for each in hour["missing_witnesses"])),
                output.printable("; ".join(finding["text"] for finding in hour["findings"])),
            ]
        )
    return "".join(lines)


class _Lines(list[str]):
    """Takes what a writer of CSV writes."""

    def write(self, line: str) -> None:
        self.append(line)


def _records(hour: Mapping[str, Any], stage: str) -> int | None:
    return hour["stages"][stage]["records"] if stage in hour["stages"] else None


def _some(lines: Sequence[str], what: str, *, show_all: bool) -> list[str]:
    shown = list(lines) if show_all else list(lines[:MAX_LINES])
    if len(shown) < len(lines):
        shown.append(f"... and {len(lines) - len(shown)} more {what}: --all shows them")
    return shown


def _witnesses(document: Mapping[str, Any]) -> list[str]:
    """Return each missing witness once, also if many hours lack its word."""
    missing = [each for hour in document["hours"] for each in hour["missing_witnesses"] if each["name"] != END_OF_HOUR]
    texts = (f"not known: {each['name']}: {each['reason']}" for each in [*document["unknown"], *missing])
    return [output.printable(text) for text in dict.fromkeys(texts)]


def _clusters(clusters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [f"{name}: {state['error']}" for name, state in clusters.items() if state["error"]]
    lines += [
        f"{name}: {output.counted(state['unreadable'], 'record')} of its audit topic cannot be read by this version"
        for name, state in clusters.items()
        if state["unreadable"]
    ]
    return [output.printable(line) for line in lines]


def _watermarks(document: Mapping[str, Any]) -> list[str]:
    lines = []
    for topic, mark in document["watermarks"].items():
        complete = "not complete yet" if mark["complete_to"] is None else f"complete to {mark['complete_to']}"
        waits = f", waits for: {mark['waits_for']}" if mark["waits_for"] else ""
        lines.append(output.printable(f"{topic} is {complete}{waits}"))
    return lines


def hours_not_shown(document: Mapping[str, Any], *, show_all: bool) -> list[str]:
    """Return a sentence about the hours that a document leaves out; none if it has all."""
    left_out: Mapping[str, int] = document["hours_left_out"]
    if not left_out:
        return []
    named = ", ".join(f"{count} {status}" for status, count in left_out.items())
    more = "" if show_all else "--all shows more; "
    return [f"Hours that are not shown: {named}. {more}--topic, --from and --to choose."]


def topics_not_counted(document: Mapping[str, Any]) -> list[str]:
    """Return a sentence about the topics that were named, and of which nothing was counted; none if there are none."""
    topics = document.get("uncounted", ())  # services of 0.1.0 do not say
    return [output.printable(f"No counts yet for topic {output.enumeration(topics, 5)}.")] if topics else []


def _summary(document: Mapping[str, Any], topics: Sequence[str], *, show_all: bool) -> list[str]:
    counts = dict(document["hours_left_out"])
    for hour in document["hours"]:
        counts[hour["status"]] = counts.get(hour["status"], 0) + 1
    total = sum(counts.values())
    if not total:
        of_topics = f" for topic {output.enumeration(topics, 5)}" if topics else ""
        lines = [output.printable(f"No counts yet{of_topics}.")]
    else:
        lines = [f"{counts.get('exact', 0)} of {output.counted(total, 'hour')} exact.", *topics_not_counted(document)]
    lines += hours_not_shown(document, show_all=show_all)
    if counts.get("recompressed"):
        lines.append(
            f"{_hours(counts['recompressed'])} recompressed: records, batches and headers are equal. "
            "`pipeline mirror verify` compares the contents of replicas."
        )
    if counts.get("explained"):
        lack = "lacks" if counts["explained"] == 1 else "lack"
        lines.append(
            f"{output.counted(counts['explained'], 'hour')} {lack} records, and it is known why: see "
            "`pipeline audit explain`."
        )
    if counts.get("pending"):
        lines.append(f"{_hours(counts['pending'])} pending: not over, or records are under way.")
    if not document["complete"] or counts.get("unknown"):
        lines.append("Some counts are not known yet, so no verdict is certain.")
    return lines


def _hours(count: int) -> str:
    return f"{output.counted(count, 'hour')} {'is' if count == 1 else 'are'}"
