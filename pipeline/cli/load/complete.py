"""`pipeline load complete` and `hours`: markers of complete hours."""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.foreground import ServiceError, fetch_json, http_url
from pipeline.cli.load.commits import Root, Topic, committed_state
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.hadoop.commit.complete_hours import Acceptance
    from pipeline.hadoop.load.config import LoadsConfig
    from pipeline.hadoop.load.many import TopicResult

REPORT_WAIT_S: Final = 30.0
"""Time in which the audit reads the counts that a load has just reported."""
_POLL_S: Final = 0.5
_REPORT_FIELDS: Final = {"complete", "hours", "clusters", "routes_error"}

Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds after its end in which an hour gets no marker.")]
Without = Annotated[
    list[str] | None, typer.Option("--without", help="Witness to do without: produced; may be repeated.")
]
DEFAULT_GRACE_S: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """Rules by which hours are judged: URL of the audit, seconds after their end, witnesses that are not asked for."""

    url: str
    grace_s: float
    without: Collection[str]

    def __post_init__(self) -> None:
        from pipeline.hadoop.commit.complete_hours import WITNESSES

        for witness in self.without:
            if witness not in WITNESSES[:-1]:
                raise ConfigurationError("--without", f"'{witness}' is not one of {', '.join(WITNESSES[:-1])}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRow:
    """An hour that is over, as commands show it. `generation` is None if it has no valid marker."""

    hour: str
    generation: int | None
    verdict: str
    why: str


def complete(
    topic: Topic,
    root: Root,
    url: Annotated[
        str, typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit service.")
    ],
    grace: Grace = DEFAULT_GRACE_S,
    without: Without = None,
    hour: Annotated[
        str | None, typer.Option("--hour", metavar="2026-01-31T10:00:00Z", help="Hour whose difference is accepted.")
    ] = None,
    accept: Annotated[str | None, typer.Option("--accept", metavar="REASON", help="Why it is accepted.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Person that accepts it.")] = None,
    json: Json = False,
) -> None:
    """Publish `_COMPLETE` in the folder of each hour whose counts the audit found exact.

    Exits with 4 unless every hour that is over has a valid marker.
    """
    accepted = _acceptances(hour, accept, by)
    marking = Marking(url=url, grace_s=grace, without=without or ())
    committed_state(topic, root)
    rows = mark_hours(marking, topic, root, accepted)
    if accepted and hour not in {row.hour for row in rows}:
        raise ConfigurationError("--hour", f"{hour} is not an hour of {topic} that the audit knows and that is over")
    if json:
        output.print_json({"topic": topic, "hours": documents(rows)})
    elif rows:
        shown = [[row.hour, row.generation, row.verdict, row.why] for row in rows]
        output.say(output.table(["HOUR", "GENERATION", "VERDICT", "WHY"], shown))
    else:
        output.say(f"{topic}: the audit has no hour that is over.")
    if not are_complete(rows):
        raise typer.Exit(output.EXIT_NOT_EXACT)


def mark_hours(
    marking: Marking, topic: str, root: str, accepted: "Sequence[Acceptance]" = (), *, wait_s: float = 0
) -> list[HourRow]:
    """Judge the hours of a loaded topic, write their markers, and return all hours that are over.

    `wait_s`: time that the audit may take to learn the counts of the table's last commit. Raises ServiceError if the
    audit does not answer, and as `complete_hours`.
    """
    from pipeline.hadoop.commit.checkpoints import read_state
    from pipeline.hadoop.commit.complete_hours import complete_hours, knows_table
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    ask = _question(marking.url, topic, root)

    def ask_until_known() -> dict[str, Any]:
        state = read_state(files, layout)
        deadline = time.monotonic() + wait_s
        while not knows_table(report := ask(), topic, state) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return report

    verdicts, valid = complete_hours(
        files,
        layout,
        ask_until_known if wait_s else ask,
        topic,
        secrets.token_hex(8),
        now_ms=wall_clock(),
        grace_ms=int(marking.grace_s * 1000),
        without=marking.without,
        accepted=accepted,
    )
    return [
        HourRow(hour=each.hour, generation=marker.generation, verdict=marker.verdict, why="")
        if (marker := valid.get(each.hour_ms)) is not None
        else HourRow(hour=each.hour, generation=None, verdict="not complete", why=each.why)
        for each in verdicts
    ]


def hours_of(
    loads: "LoadsConfig", results: "Iterable[TopicResult]", marking: Marking, *, wait_s: float = REPORT_WAIT_S
) -> dict[str, list[HourRow]]:
    """Mark the hours of all topics that did not fail and have commits. Raises as `mark_hours`.

    A conflict is no failure: another run has committed. `wait_s` is for all topics together.
    """
    from pipeline.hadoop.commit.checkpoints import table_of

    deadline = time.monotonic() + wait_s
    roots = {each.topic: loads.config_of(each.topic).root for each in results if each.error is None or each.is_conflict}
    return {
        topic: mark_hours(marking, topic, root, wait_s=max(0.0, deadline - time.monotonic()))
        for topic, root in roots.items()
        if table_of(root, topic).last is not None
    }


def documents(rows: Sequence[HourRow]) -> list[dict[str, Any]]:
    """Return hours as JSON shows them."""
    names = ("hour", "generation", "verdict", "why")
    return [{name: getattr(row, name) for name in names} for row in rows]


def are_complete(rows: Sequence[HourRow]) -> bool:
    """True if there are hours, and all of them have a valid marker."""
    return bool(rows) and all(row.generation is not None for row in rows)


def _acceptances(hour: str | None, accept: str | None, by: str | None) -> "list[Acceptance]":
    from pipeline.hadoop.commit.complete_hours import Acceptance, start_of

    if hour is None and accept is None and by is None:
        return []
    if not (hour and accept and by):
        raise ConfigurationError("--accept", "needs all of --hour, --accept and --by")
    if start_of(hour) is None:
        raise ConfigurationError("--hour", f"'{hour}' is not an hour in UTC such as 2026-01-31T10:00:00Z")
    return [Acceptance(hour=hour, accepted_by=by, reason=accept)]


def _question(url: str, topic: str, root: str) -> Callable[[], dict[str, Any]]:
    def ask() -> dict[str, Any]:
        document = fetch_json(f"{url}/v1/report?topic={topic}")
        if not isinstance(document, dict) or not document.keys() >= _REPORT_FIELDS:
            raise ServiceError(f"{url} answers something that is no report of an audit: is that another service?")
        return of_root(document, root)

    return ask


def of_root(document: dict[str, Any], root: str) -> dict[str, Any]:
    """Return a report in which the loads of a root are the stage `loaded`, and those of the topic's other roots none.

    A topic with several roots has a stage `loaded:ROOT` for each.
    """
    from pipeline.audit.counting.load_rows import name_of_root

    own = f"loaded:{name_of_root(root)}"
    hours = [
        hour | {"stages": {"loaded" if stage == own else stage: sums for stage, sums in hour["stages"].items()}}
        for hour in document["hours"]
    ]
    return document | {"hours": hours}


def show_hours(topic: Topic, root: Root, json: Json = False) -> None:
    """Show the complete hours of a topic, and whether late data came after their markers."""
    from pipeline.hadoop.commit.complete_hours import read_markers, valid_markers
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    state = committed_state(topic, root)
    found = read_markers(files, layout)
    valid = valid_markers(state, found)
    rows: list[list[Any]] = [
        [
            marker.hour,
            marker.generation,
            marker.commit,
            marker.records,
            marker.verdict,
            marker.accepted_by,
            marker is valid.get(hour_ms),
        ]
        for hour_ms, known in sorted(found.items())
        for marker in known.markers
    ]
    names = ("hour", "generation", "commit", "records", "verdict", "accepted_by", "is_valid")
    if json:
        output.print_json({"topic": topic, "hours": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        for row in rows:
            row[-1] = "" if row[-1] else "superseded by late data"
        output.say(output.table(["HOUR", "GENERATION", "COMMIT", "RECORDS", "VERDICT", "ACCEPTED BY", ""], rows))
    else:
        output.say(f"{topic}: no hour is marked as complete.")
