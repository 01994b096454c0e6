"""The page of what services say names events that services log, and series that they export."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deploy" / "what-services-say.md").read_text()
CODE = "\n".join(path.read_text() for path in sorted((ROOT / "pipeline").rglob("*.py")))


def test_the_events_of_the_page_are_logged() -> None:
    tables = re.findall(r"^\| event \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    events = {
        name for table in tables for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert {"starting", "stopped", "broker_ready", "disk_full", "zookeeper_unreachable"} <= events
    assert [event for event in sorted(events) if f'"{event}"' not in CODE] == []


def test_what_was_renamed_is_logged_no_more() -> None:
    (table,) = re.findall(r"^\| before \| now \|\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    events = {
        name
        for row in table.splitlines()
        if row.split("|")[1].strip().startswith("event")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert "registry_serving" in events
    logged = rf'\.(info|warning|error)\(\s*"({"|".join(events)})"'
    assert re.findall(logged, CODE) == []
