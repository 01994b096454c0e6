"""`pipeline mirror status`: sources, partitions with trouble, offsets of groups, exit codes."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipeline.cli.main import app
from pipeline.cli.mirror import status as status_command

GROUPS = {
    "copied": 12,
    "waiting": 3,
    "left_alone": [
        {"group": "billing", "reason": "has members at the hub"},
        {"group": "search", "topic": "clicks", "partition": 4, "reason": "moved on at the hub"},
    ],
    "left_alone_count": 2,
    "error": "broker 3 is not registered",
    "age_seconds": 1.25,
}


STATES = ("locating", "copying", "caught_up", "silent", "waiting", "halted", "rejected", "gone")


def line(number: int, state: str = "caught_up", lag: int | None = 0, **more: Any) -> dict[str, Any]:
    """A partition of the document."""
    place = {"topic": "clicks", "partition": number, "replica_topic": "clicks", "replica_partition": number}
    seconds = None if lag is None else float(lag)
    shown = {"state": state, "position": 7, "lag": lag, "lag_seconds": seconds, "bytes_per_second": 12.3}
    return {**place, **shown, "error": None, "advice": None, **more}


def source_of(partitions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A source of the document."""
    return {
        "name": "east",
        "up": True,
        "error": None,
        "answer_age_seconds": 0.25,
        "states": {state: sum(each["state"] == state for each in partitions) for state in STATES},
        "unknown_lags": sum(each["lag"] is None for each in partitions),
        "partitions": partitions,
        **more,
    }


def run(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], *options: str, error: str | None = None, **more: Any
) -> Result:
    monkeypatch.setattr(status_command, "read_json", lambda _url: {"error": error, "sources": [source], **more})
    return CliRunner().invoke(app, ["mirror", "status", "--mirror", "http://127.0.0.1:8090", *options])


def status(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], exit_code: int = 0) -> str:
    result = run(monkeypatch, source_of([], **source))
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_settings_that_a_restart_would_replace_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(**settings: Any) -> str:
        result = run(monkeypatch, source_of([]), settings=settings)
        assert result.exit_code == 0
        return result.stdout

    assert "settings" not in shown(version="1", is_of_file=True, file_error=None)
    assert "settings" not in shown(version="1", is_of_file=None, file_error=None)
    assert "which a restart would put in force" in shown(version="1", is_of_file=False, file_error=None)
    assert "is wrong: mirror.toml: cannot" in shown(version="1", is_of_file=None, file_error="mirror.toml: cannot")


def test_a_mirror_without_trouble_has_a_summary_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, source_of([line(0), line(1, "copying", 30)]))
    heading, east = result.stdout.splitlines()
    assert heading.split()[:4] == ["SOURCE", "UP", "PARTITIONS", "UNKNOWN-LAG"]
    assert east.split(maxsplit=9) == [
        "east",
        "yes",
        "2",
        "0",
        "30",
        "30.0",
        "0.2",
        "s",
        "ago",
        "1 copying, 1 caught_up",
    ]
    assert (result.exit_code, result.stderr) == (0, "")


def test_partitions_with_trouble_are_listed_with_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = line(1, "silent", None, flow="pages", error="no answer for 9 s", advice="check the network")
    result = run(monkeypatch, source_of([line(0), silent]))
    row, advice = result.stdout.splitlines()[-2:]
    assert row.split(maxsplit=9) == [
        "east", "pages", "clicks-1", "clicks-1", "silent", "7", "unknown", "unknown", "12", "no answer for 9 s",
    ]  # fmt: skip
    assert advice == "silent: check the network"
    assert "clicks-0" not in result.stdout
    assert result.exit_code == 1
    assert result.stderr == "pipeline: 1 partition of east not copied; 1 partition of east with unknown lag\n"


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (
            {"up": False, "error": "no broker answers"},
            None,
            "source east: no broker answers",
        ),
        ({"up": False}, None, "source east: is not up"),
        ({"error": "replica clicks: POLICY_VIOLATION"}, None, "source east: replica clicks: POLICY_VIOLATION"),
        ({}, "not reached yet", "the hub: not reached yet"),
    ],
)
def test_a_cluster_that_does_not_answer_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], error: str | None, reason: str
) -> None:
    result = run(monkeypatch, source_of([line(0)], **source), error=error)
    assert (result.exit_code, result.stderr) == (1, f"pipeline: {reason}\n")
    result = run(monkeypatch, source_of([line(0)], **source), "--json", error=error)
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (1, error)


def test_very_many_partitions_with_trouble_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    many = source_of([line(number, "silent", None) for number in range(10_000)])
    result = run(monkeypatch, many)
    assert len(result.stdout.splitlines()) < 60
    assert "and 9950 more with trouble: --all lists all partitions" in result.stdout
    assert len(run(monkeypatch, many, "--all").stdout.splitlines()) > 10_000


def test_a_topic_alone_is_shown_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    other = line(0, "gone", None, topic="orders")
    result = run(monkeypatch, source_of([line(0), other]), "--topic", "clicks", "--json")
    (east,) = json.loads(result.stdout)["sources"]
    assert ([each["topic"] for each in east["partitions"]], east["states"]["gone"], east["unknown_lags"]) == (
        ["clicks"],
        0,
        0,
    )
    assert result.exit_code == 0
    assert run(monkeypatch, source_of([line(0), other]), "--topic", "orders").exit_code == 1
    result = run(monkeypatch, source_of([line(0)]), "--topic", "nothing")
    assert (result.exit_code, result.stderr) == (1, "pipeline: no partition of topic nothing is mirrored\n")


def test_offsets_of_groups_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = status(monkeypatch, {"groups": GROUPS}, exit_code=1).splitlines()
    assert lines[-4:] == [
        "east: offsets of groups: compared 1.2 s ago, 12 copied, 3 wait, 2 left alone",
        "east: group billing has members at the hub",
        "east: group search in clicks-4 moved on at the hub",
        "east: offsets of groups: broker 3 is not registered",
    ]


def test_a_source_whose_groups_were_never_compared_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = {**GROUPS, "age_seconds": None, "left_alone": [], "left_alone_count": 0, "error": None}
    assert "not compared yet" in status(monkeypatch, {"groups": fresh})


@pytest.mark.parametrize("source", [{}, {"groups": None}])
def test_a_mirror_that_copies_no_groups_says_nothing(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]) -> None:
    assert "offsets of groups" not in status(monkeypatch, source)


def test_flows_are_shown_with_their_lag_rate_and_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        "name": "pages",
        "source": "east",
        "partitions": 3,
        "states": {"copying": 2, "paused": 1, "gone": 0},
        "lag": None,
        "lag_bytes": 1234,
        "lag_seconds": 2.5,
        "bytes_per_second": 10.4,
        "throttle_bytes_per_second": 5000,
        "is_throttled": True,
        "last_error": {"partition": "clicks-0", "error": "broker 1 is away", "age_seconds": 7.2, "advice": "wait"},
        "remarks": [],
    }
    result = run(monkeypatch, source_of([line(0, flow="pages")]), flows=[pages])
    assert result.exit_code == 0
    assert (
        "pages  east             3  unknown   1234      2.5       10  5000 (waits)  2 copying, 1 paused"
        in result.stdout
    )
    assert "flow pages: last error 7 s ago, clicks-0: broker 1 is away" in result.stdout
    result = run(monkeypatch, source_of([line(0, flow="pages")]), "--topic", "clicks", flows=[pages])
    assert "THROTTLE" not in result.stdout


def test_remarks_on_flows_are_shown_and_a_topic_that_is_not_copied_is_a_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = {"topic": "clicks", "remark": "its replica is clicks", "is_copied": True}
    illegal = {"topic": "views", "remark": "not copied: change replica.topic", "is_copied": False}
    flows = [{"name": "pages", "remarks": [moved, illegal]}]
    result = run(monkeypatch, source_of([line(0, flow="pages")]), "--all", flows=flows)
    assert "flow pages: clicks: its replica is clicks\n" in result.stdout
    assert result.stdout.splitlines()[-1].split()[:3] == ["east", "pages", "clicks-0"]
    assert (result.exit_code, "flow pages: views: not copied: change replica.topic" in result.stderr) == (1, True)
    result = run(monkeypatch, source_of([line(0, flow="pages")]), "--topic", "clicks", flows=flows)
    assert (result.exit_code, "views" in result.output) == (0, False)
