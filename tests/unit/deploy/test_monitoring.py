"""Alert rules and dashboards: accepted by Prometheus, held to the metrics that services export, each with a runbook."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dashboards import WIDTH, described, panels_of, written
from tests.support.doc_commands import command_faults
from tests.support.exported_metrics import TARGET_LABELS, exporting_services, series_of
from tests.support.promql import faults_of, names_in

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOKS = "docs/deploy/runbooks.md"
RULES = sorted(MONITORING.glob("*-rules.yml"))
OF_OTHERS = {"up": frozenset[str](), "node_systemd_unit_state": frozenset({"name", "state", "type"})}
"""Series of Prometheus itself and of node exporter."""
PARTS_OF_A_RUNBOOK = ("**Meaning.**", "**Look.**", "**Do.**")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool") or str(ROOT / ".cache" / "promtool" / "usr" / "bin" / "promtool")
    return subprocess.run([found, *arguments], cwd=MONITORING, capture_output=True, text=True, check=False, timeout=60)


def alerts_of(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.long
@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_rules_fire_when_they_should_and_else_not(rules: Any) -> None:
    """promtool runs the rules over series of samples; each alert fires in one test, and is silent at another time."""
    for arguments in (("check", "rules", rules.name), ("test", "rules", f"{rules.stem}-test.yml")):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    text = rules.with_name(f"{rules.stem}-test.yml").read_text()
    assert {alert["alert"] for alert in alerts_of(rules)} == set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", text))


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_every_alert_has_a_runbook_that_says_what_it_means_and_what_to_do(rules: Any) -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", (ROOT / RUNBOOKS).read_text(), re.MULTILINE | re.DOTALL))
    for alert in alerts_of(rules):
        name = alert["alert"]
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS}#{name.lower()}"
        assert alert["labels"]["severity"] in ({"none"} if name == "Watchdog" else {"critical", "warning"})
        assert [part for part in PARTS_OF_A_RUNBOOK if part not in sections.get(name, "")] == [], name


def test_no_runbook_is_left_without_its_alert() -> None:
    alerts = {alert["alert"] for rules in RULES for alert in alerts_of(rules)}
    assert set(re.findall(r"^### (\w+)$", (ROOT / RUNBOOKS).read_text(), re.MULTILINE)) == alerts


def test_runbooks_name_commands_that_there_are_with_the_options_that_they_need() -> None:
    written = re.findall(r"`pipeline ([^`]+)`", (ROOT / RUNBOOKS).read_text())
    assert written
    assert [fault for line in written for fault in command_faults(shlex.split(line))] == []


def expressions() -> list[tuple[str, str]]:
    alerts = [(f"{rules.name}: {alert['alert']}", alert["expr"]) for rules in RULES for alert in alerts_of(rules)]
    panels = [
        (f"{name}: {title} {legend}", expression)
        for name, dashboard in described().items()
        for title, legend, expression in panels_of(dashboard)
    ]
    return alerts + panels


def test_dashboards_are_those_of_their_description() -> None:
    """`python -m tests.support.dashboards` writes them."""
    assert {path: path.read_text() for path in (MONITORING / "dashboards").iterdir()} == written()


def test_legends_name_labels_that_results_have() -> None:
    for dashboard in described().values():
        for title, legend, expression in panels_of(dashboard):
            named = set(re.findall(r"{{(\w+)}}", legend))
            grouped = names_in(expression).grouped
            assert named <= (grouped or {"job", "instance", "log_dir"}), title


def test_no_panel_shows_0_when_nobody_reports() -> None:
    for dashboard in described().values():
        for title, _, expression in panels_of(dashboard):
            assert not {"absent", "vector"} & set(re.findall(r"\w+", expression)), title


def test_panels_stand_beside_each_other() -> None:
    for text in written().values():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert place["x"] + place["w"] <= WIDTH
            assert not cells & taken
            taken |= cells


async def test_rules_and_dashboards_name_only_what_services_export(tmp_path: Path) -> None:
    async with exporting_services(tmp_path) as services:
        series = {name: labels for each in services.values() for name, labels in series_of(each).items()}
    faults = {place: faults_of(text, series | OF_OTHERS, TARGET_LABELS) for place, text in expressions()}
    assert {place: found for place, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    ("expression", "faults"),
    [
        ('sum by (topic) (rate(a_total{topic="b{c}"}[5m])) / on (job) a_total offset 1h > 1e6', []),
        ("rate(nothing_total[5m])", ["nothing_total is exported by no service"]),
        ('a_total{colour=~"red|blue"}', ["a_total has no label colour"]),
        ("max without (size) (a_total)", ["no series of the expression has a label size"]),
        ("histogram_quantile(0.99, sum by (le) (rate(b_bucket[5m]))) unless a_total", []),
    ],
)
def test_faults_of_expressions_are_found(expression: Any, faults: Any) -> None:
    """What finds faults in rules, tried on expressions with and without them."""
    series = {"a_total": frozenset({"topic"}), "b_bucket": frozenset({"le"})}
    assert faults_of(expression, series, TARGET_LABELS) == faults
