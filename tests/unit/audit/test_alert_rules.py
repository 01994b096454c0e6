"""Alert rules of the audit, run by Prometheus' own tool, and held to the metrics that there are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "monitoring"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool") or str(ROOT / ".cache" / "promtool" / "usr" / "bin" / "promtool")
    return subprocess.run([found, *arguments], cwd=RULES, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "audit-rules.yml"), ("test", "rules", "audit-rules-test.yml")]
)
def test_prometheus_accepts_the_rules_and_they_fire_when_they_should(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (RULES / "audit-rules.yml").read_text()))
    tested = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", (RULES / "audit-rules-test.yml").read_text())
    assert alerts == set(tested)
