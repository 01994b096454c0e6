"""`pipeline deploy`: faults of a description, and the folder of a render."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.errors import ConfigurationError
from tests.support.companies import EXAMPLE

ANSIBLE_ROLE = EXAMPLE.parent / "ansible" / "roles" / "pipeline"


@pytest.fixture
def description(tmp_path: Path) -> Path:
    path = tmp_path / "company.toml"
    shutil.copy(EXAMPLE, path)
    return path


def run(*words: object) -> tuple[int, list[str]]:
    """Return the exit code and the lines of a command; a ConfigurationError, which `main` would show, is one line."""
    done = CliRunner().invoke(app, ["deploy", *map(str, words)])
    if isinstance(done.exception, ConfigurationError):
        return 2, [str(done.exception)]
    return done.exit_code, done.output.splitlines()


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (path.read_text(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_sound_description_has_no_faults(description: Any) -> None:
    assert run("check", description) == (0, [f"{description}: 31 services on 9 hosts, no faults."])


def test_faults_of_parts_and_of_services_are_shown_and_nothing_is_written(description: Any, tmp_path: Any) -> None:
    text = description.read_text()
    description.write_text(text.replace("log.retention.hours = 720", "log.retention.hour = 720"))
    code, lines = run("check", description)
    assert code == 1
    assert lines[0] == (
        "settings.broker: log.retention.hour: is not a setting of the broker; did you mean log.retention.hours?"
    )
    assert lines[-1].endswith("company.toml has 1 fault")
    text = text.replace("log.retention.hours = 720", "log.retention.hours = -2")
    description.write_text(text.replace('rack = "c"', 'rack = "b"').replace("zookeeper = 3", "zookeeper = 2"))
    code, lines = run("render", description, tmp_path / "out")
    assert (code, len(lines)) == (1, 11)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("role", "line", "fault"),
    [
        ("broker", 'ssl.key.password = "s3cret"', "settings.broker: ssl.key.password holds a secret"),
        ("mirror", 'destination.sasl.password = "s3cret"', "settings.mirror: destination.sasl.password holds a secret"),
        ("load", 'iceberg.catalog.password = "s3cret"', "settings.load: iceberg.catalog.password holds a secret"),
        ("audit", '[[settings.audit.other]]\nsasl.password = "s3cret"', "settings.audit: other.sasl.password holds a"),
        ("load", 'schema.registry.url = "http://a:s3cret@b:1"', "settings.load: schema.registry.url holds a password"),
        ("zookeeper", 'dataLogDir = "a\\nb"', "settings.zookeeper: dataLogDir must be one line of text, a number"),
        ("zookeeper", 'dataLogDir = "a\\rb"', "settings.zookeeper: dataLogDir must be one line of text, a number"),
        ("zookeeper", '"a\\nb" = 1', "settings.zookeeper: 'a\\nb' is no name of a setting"),
        ("zookeeper", '"dataDir " = "/b"', "settings.zookeeper: 'dataDir ' is no name of a setting"),
        ("zookeeper", 'ssl.keyStore.password = "s3cret"', "settings.zookeeper: ssl.keyStore.password holds a secret"),
        ("zookeeper", '"server.9" = "a:2888:3888"', "settings.zookeeper: server.9 follows from the description"),
        ("zookeeper", "secureClientPort = 2281", "settings.zookeeper: secureClientPort follows from the description"),
    ],
)
def test_what_no_rendered_file_may_hold(description: Any, role: str, line: str, fault: str) -> None:
    text = description.read_text().rstrip() + "\n"
    table = f"\n[settings.{role}]\n" if role != "broker" else ""
    description.write_text(f"{text}{table}{line}\n")
    code, lines = run("check", description)
    assert code == 1
    assert any(each.startswith(fault) for each in lines)
    assert not any("s3cret" in each for each in lines)


def test_a_second_render_touches_nothing(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    assert run("render", description, out)[1] == [f"{out}: 55 written, 0 unchanged, 0 removed."]
    before = contents(out)
    assert run("render", description, out)[1] == [f"{out}: 0 written, 55 unchanged, 0 removed."]
    assert contents(out) == before


def test_a_change_touches_only_the_files_that_it_concerns(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    run("render", description, out)
    before = contents(out)
    description.write_text(description.read_text().replace("log.retention.hours = 720", "log.retention.hours = 721"))
    run("render", description, out)
    after = contents(out)
    assert sorted(path for path in after if after[path] != before[path]) == [
        f"hub-{(number + 1) // 2}/etc/pipeline/broker-{number}.toml" for number in range(1, 7)
    ]


def test_files_of_hosts_that_are_gone_stay_until_they_are_pruned(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    run("render", description, out)
    (out / "hub-3" / "notes.txt").write_text("an operator's")
    tables = description.read_text().split("\n\n")
    without = [table for table in tables if not table.startswith(('[[hosts]]\nname = "hub-3"', "[[loads]]"))]
    description.write_text("\n\n".join(without).replace("zookeeper = 2\nbrokers = [3, 4]", "brokers = [3, 4]"))
    description.write_text(
        description.read_text()
        + "default.replication.factor = 2\nmin.insync.replicas = 1\noffsets.topic.replication.factor = 2\n"
    )
    code, lines = run("render", description, out)
    assert code == 0
    assert "no longer described: hub-3/etc/pipeline/audit-hub.toml" in lines
    assert (out / "hub-3/etc/pipeline/audit-hub.toml").exists()
    assert "no longer described: hub-3/units" in run("render", description, out)[1]
    code, lines = run("render", description, out, "--prune")
    assert "removed hub-3/etc/pipeline/broker-6.toml" in lines
    assert [path.name for path in (out / "hub-3").rglob("*")] == ["notes.txt"]
    assert run("render", description, out)[1] == [f"{out}: 0 written, 45 unchanged, 0 removed."]


def test_files_that_no_render_wrote_are_left_alone(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    target = out / "east-1" / "units"
    target.parent.mkdir(parents=True)
    target.write_text("mine\n")
    code, lines = run("render", description, out)
    assert (code, lines) == (
        2,
        [f"{out}: east-1/units is there, and no render wrote it; choose another folder"],
    )
    assert [path.name for path in out.rglob("*") if path.is_file()] == ["units"]


def test_a_list_that_leads_elsewhere_is_refused(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "kept").write_text("")
    (out / "rendered-files").write_text("../kept\n")
    code, lines = run("render", description, out, "--prune")
    assert (code, lines) == (2, [f"{out / 'rendered-files'}: names ../kept, which is not in the folder"])
    assert (tmp_path / "kept").exists()


def test_a_render_that_does_not_come_to_its_end_leaves_a_sign_until_one_does(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    in_the_way = out / "west-1" / "units.new"
    in_the_way.mkdir(parents=True)
    assert run("render", description, out) == (2, [f"{out}: cannot be used: Is a directory"])
    assert (out / "east-1" / "units").exists()
    assert "run `pipeline deploy render` again" in (out / "unfinished-render").read_text()
    role = ANSIBLE_ROLE / "tasks" / "units.yml"
    assert "'/unfinished-render') is exists" in role.read_text()
    in_the_way.rmdir()
    assert run("render", description, out)[0] == 0
    assert not (out / "unfinished-render").exists()
    (out / "unfinished-render").write_text("of a render that ended before its first file")
    run("render", description, out)
    assert not (out / "unfinished-render").exists()


def test_the_name_of_a_description_is_one_line_wherever_it_stands(description: Any, tmp_path: Any) -> None:
    path = description.rename(tmp_path / "a\ntouch b\nc.toml")
    assert run("render", path, tmp_path / "out")[0] == 0
    lines = (tmp_path / "out" / "east-1" / "etc" / "pipeline" / "broker-1.toml").read_text().splitlines()
    assert lines[0].startswith("# Generated from a?touch b?c.toml by")
    assert lines[1] == ""


def test_one_render_at_a_time_changes_a_folder(description: Any, tmp_path: Any) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert run("render", description, tmp_path) == (
            2,
            [f"{tmp_path}: another render writes there; run the command again"],
        )
    finally:
        os.close(descriptor)
    assert run("render", description, tmp_path)[0] == 0


def test_prometheus_scrapes_every_http_server(description: Any, tmp_path: Any) -> None:
    out = tmp_path / "out"
    run("render", description, out)
    groups = json.loads((out / "prometheus" / "targets.json").read_text())
    targets = [target for group in groups for target in group["targets"]]
    assert len(targets) == len(set(targets)) == 12 + 4 + 4 + 1
    assert "hub-2.example.com:9090" in targets
    assert {group["labels"]["job"] for group in groups} == {"broker", "mirror", "registry", "audit"}
    assert {group["labels"]["datacenter"] for group in groups} == {"east", "west", "hub"}


def test_capacity_is_estimated_for_each_part() -> None:
    load = ("--records-per-second", 10_000, "--record-bytes", 1_000, "--batch-records", 100, "--datacenters", 2)
    code, lines = run("capacity", *load)
    assert code == 0
    assert [line.split("  ")[0] for line in lines] == ["PART", "live brokers", "hub brokers", "mirror", "audit"]
    code, lines = run("capacity", *load, "--json")
    live, hub, mirror, _ = json.loads("".join(lines))
    assert (live["count"], hub["count"], live["processes"]) == (2, 1, 3)
    assert (live["received_bytes_per_s"], mirror["received_bytes_per_s"]) == (30e6, 20e6)
    code, _ = run("capacity", *load[:-1], 101)
    assert code == 2
