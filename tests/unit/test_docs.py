"""The pages say what the code says: every setting by name, the versions served, and links that lead somewhere."""

import ast
import builtins
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import pipeline.client
from pipeline.broker.requests.dispatch import SERVED
from tests.support.doc_commands import command_faults, commands_of
from tests.support.kafka import KAFKA_REVISION
from tests.support.setting_tables import MODELS, descriptions, write_tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", sorted(set(MODELS.values())))
def test_tables_of_settings_are_those_of_the_declarations(page: Any) -> None:
    """`python -m tests.support.setting_tables` writes them."""
    text = (DOCS / page).read_text()
    assert write_tables(page, text) == text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_has_a_description(model: Any) -> None:
    texts = descriptions(model)
    assert texts
    assert [name for name, text in texts.items() if not re.fullmatch(r"[A-Z].*\.", text)] == []


def test_the_versions_served_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| \w+ \| (\d+)–(\d+) \|", (DOCS / "protocol.md").read_text(), re.MULTILINE)
    assert [tuple(map(int, row)) for row in rows] == sorted(
        (api.value, api.min_version, api.max_version) for api in SERVED.values()
    )


def test_clients_were_tried_in_the_versions_of_the_table() -> None:
    rows = dict(re.findall(r"^\| ([\w -]+) \| ([\d.]+) \|", (DOCS / "testing.md").read_text(), re.MULTILINE))
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    python = {name: pinned[name] for name in ("confluent-kafka", "aiokafka", "kafka-python")}
    assert rows == {**python, "kcat": rows.get("kcat"), "Java tools": KAFKA_REVISION}


def headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Any) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text())
    targets = [(page.parent / link if link else page, heading) for link, heading in links]
    assert [str(target) for target, _ in targets if not target.exists()] == []
    assert [(str(target), heading) for target, heading in targets if heading and heading not in headings(target)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_line_takes_the_commands_of_the_pages(page: Any) -> None:
    assert [fault for words in commands_of(page.read_text()) for fault in command_faults(words)] == []


def test_faults_of_commands_are_found() -> None:
    block = """
    echo hello | pipeline produce visits --no-such-option -b HOST:PORT      # a record
    pipeline load verify clicks --root hdfs://nn:8020/lake \\
        --datacenter hub > report
    pipeline no command
    PIPELINE_BOOTSTRAP=east:9092 pipeline load run ... --complete
    """
    faults = [fault.partition(": ")[2] for words in commands_of(block) for fault in command_faults(words)]
    assert faults == [
        "No such option: --no-such-option",
        "topic is missing",
        "clicks is too many",
        "there is no such command",
    ]


def test_files_of_the_way_of_a_batch_exist() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)`", (DOCS / "architecture.md").read_text())
    assert named
    assert [name for name in named if not (ROOT / "pipeline" / name).is_file()] == []


def names_without_definition(block: str) -> set[str]:
    tree = ast.parse(f"async def program():\n{textwrap.indent(block, '    ')}")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.alias(name=name, asname=asname):
                defined.add(asname or name)
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ExceptHandler(name=str(name))
            ):
                defined.add(name)
            case ast.arg(arg=name):
                defined.add(name)
    return {name.id for name in names} - defined - set(dir(builtins))


VARIABLES = {
    "cluster",
    "producer",
    "consumer",
    "stream",
    "group",
    "read",
    "registry",
    "config",
    "clock",
    "SystemRandom",
    "trio",
}
"""What the pieces of programs in docs/client/ take as open, and what all of them import."""


@pytest.mark.parametrize("page", ["client.md", *sorted(f"client/{page.name}" for page in DOCS.glob("client/*.md"))])
def test_the_pages_of_the_client_define_or_export_every_name(page: Any) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks or page != "client.md"
    for block in blocks:
        is_program = re.search(r"^trio\.run\(|^if __name__", block, re.MULTILINE)
        known = set() if is_program else {*pipeline.client.__all__, *VARIABLES}
        assert sorted(names_without_definition(block) - known) == []
