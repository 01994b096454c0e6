"""The schedules of examples/: their programs accept them, where there are such programs, and their commands exist."""

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.cli.load.load import app

SCHEDULES = Path(__file__).parents[2] / "examples" / "schedules"
FILES = ["airflow_load.py", "load.cron", "pipeline-load.service", "pipeline-load.timer"]


def test_all_of_them_are_looked_at() -> None:
    assert sorted(path.name for path in SCHEDULES.iterdir() if path.is_file()) == FILES


@pytest.mark.parametrize("name", FILES[:3])
def test_the_command_and_its_options_exist(name: Any) -> None:
    (command,) = re.findall(r"(?<!load )\bpipeline load run [^\"\n>]*", (SCHEDULES / name).read_text())
    _, _, verb, *words = shlex.split(command)
    run: Any = typer.main.get_group(app).commands[verb]
    known = {option for parameter in run.params for option in parameter.opts}
    options = [word for word in words if word.startswith("--")]
    assert "--config" in options
    assert set(options) <= known


def test_the_crontab_has_five_times_and_a_command() -> None:
    lines = [line for line in (SCHEDULES / "load.cron").read_text().splitlines() if line and not line.startswith("#")]
    jobs = [line for line in lines if not re.fullmatch(r"[A-Z_]+=\S+", line)]
    assert [re.fullmatch(r"(?:[\d*/,-]+ ){5}pipeline load run .+", job) is not None for job in jobs] == [True]
    assert "%" not in jobs[0]  # a line break to cron


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in FILES[2:]:
        text = (SCHEDULES / name).read_text().replace("/opt/pipeline/bin/pipeline", "/bin/true")
        (tmp_path / name).write_text(text)
    units = [str(tmp_path / name) for name in FILES[2:]]
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("name", FILES[2:])
def test_units_have_sections_and_keys(name: Any) -> None:
    sections: dict[str, list[str]] = {}
    for line in (SCHEDULES / name).read_text().splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            keys = sections.setdefault(header[1], [])
        elif line and not line.startswith("#"):
            keys.append(re.fullmatch(r"(\w+)=.+", line)[1])  # type: ignore[index]
    expected = {"Unit", "Service"} if name.endswith("service") else {"Unit", "Timer", "Install"}
    assert sections.keys() == expected


def test_the_dag_compiles_and_needs_nothing_but_airflow() -> None:
    text = (SCHEDULES / "airflow_load.py").read_text()
    tree = ast.parse(text)
    compile(tree, "airflow_load.py", "exec")
    imported = {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert imported == {"airflow", "datetime"}
