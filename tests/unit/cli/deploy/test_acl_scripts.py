"""The scripts of ACLs name every right of the services, in words that `pipeline acl add` takes."""

import shlex
from typing import Any

import pytest
import typer

from pipeline.cli.acl.acl import app
from pipeline.cli.deploy.acl_scripts import acl_scripts
from pipeline.cli.secured.roles import RIGHTS
from tests.support.companies import example_company, secure


def commands() -> list[list[str]]:
    scripts = acl_scripts(example_company(secure), "company.toml")
    assert sorted(scripts) == ["acls/east.sh", "acls/hub.sh", "acls/west.sh"]
    lines = scripts["acls/hub.sh"].splitlines()
    assert "hub-3.example.com:9102" in lines[2]
    return [shlex.split(line) for line in lines if line.startswith("pipeline")]


def test_each_right_of_the_services_has_a_command() -> None:
    found = commands()
    assert len(found) == sum(len(rights) for user, rights in RIGHTS.items() if user != "app")
    assert ["pipeline", "acl", "add", "--allow-principal", "User:load", "--topic", "*", "--operation", "Read"] in found
    assert any({"_schemas", "prefixed"} <= set(words) for words in found)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_command_line_takes_it(words: Any) -> None:
    add: Any = typer.main.get_group(app).commands["add"]
    with add.make_context("add", words[3:]) as context:
        assert context.params["operation"] == words[words.index("--operation") + 1 :: 2]


def test_services_without_logins_need_none() -> None:
    assert acl_scripts(example_company(), "company.toml") == {}
