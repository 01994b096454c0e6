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


def test_what_protects_services_is_removed_only_where_its_successor_was_just_copied() -> None:
    """Services that start in between would run as root: site.yml without a package, say, installs no units."""
    tasks = {path.name: yaml.safe_load(path.read_text()) for path in (ROLE / "tasks").glob("*.yml")}
    removing = [
        (name, number)
        for name, each in tasks.items()
        for number, task in enumerate(each)
        if task.get("ansible.builtin.file", {}).get("state") == "absent"
        and "/usr/local/lib/systemd/system" in str([task["ansible.builtin.file"], task.get("loop")])
    ]
    assert [name for name, _ in removing] == ["wheel.yml"]
    ((_, place),) = removing
    copied = [each.get("ansible.builtin.copy", {}).get("dest") for each in tasks["wheel.yml"][:place]]
    assert "/usr/local/lib/systemd/system/" in copied


def test_starts_of_every_kind_of_service_are_noted() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    units = sorted(path.name for path in (ANSIBLE.parent / "systemd").glob("*@.service"))
    assert defaults["pipeline_drop_ins"] == [f"/etc/systemd/system/{unit}.d" for unit in units]
    assert {path.parent.name for path in (ANSIBLE.parent / "systemd").glob("*.d/10-protection.conf")} == {
        f"{unit}.d" for unit in units
    }
