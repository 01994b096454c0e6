"""Ansible accepts the playbooks, and each task and variable of the role is used."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ANSIBLE = Path(__file__).parents[2] / "deploy" / "ansible"
ROLE = ANSIBLE / "roles" / "pipeline"
PLAYBOOKS = sorted(path.name for path in ANSIBLE.glob("*.yml"))


def texts() -> str:
    return "\n".join(path.read_text() for path in [*ANSIBLE.glob("*.yml"), *(ROLE / "tasks").glob("*.yml")])


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_ansible_accepts_it(playbook: Any, tmp_path: Any) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all: {hosts: {east-1: {}}}\n")
    command = [
        Path(sys.executable).with_name("ansible-playbook"),
        "-i",
        inventory,
        "--syntax-check",
        ANSIBLE / playbook,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"ANSIBLE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(path.name for path in (ROLE / "tasks").glob("*.yml")))
def test_every_task_has_a_name_and_every_file_of_tasks_is_used(path: Any) -> None:
    tasks = yaml.safe_load((ROLE / "tasks" / path).read_text())
    assert all(task.get("name") for task in tasks)
    assert path == "main.yml" or re.search(rf"\b{re.escape(path.removesuffix('.yml'))}\b", texts())


def test_every_default_is_used() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert [name for name in defaults if name not in texts()] == []
