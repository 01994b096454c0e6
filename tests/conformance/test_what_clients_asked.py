"""docs/protocol.md says what each foreign client was seen to ask of our broker in the tests of this folder.

These tests run after all others. What was seen must be in the table; what is in the table must have been seen, if all
of the folder was run.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from pipeline.protocol.api import ApiKey
from tests.support.recorder import Recorder

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "protocol.md"
LETTERS = {
    "confluent-kafka-python": "C",
    "aiokafka": "A",
    "kafka-python": "P",
    "librdkafka": "K",
    "apache-kafka-java": "J",
}
"""By what they call themselves; only kcat says no more than the name of its library."""

BY_CHANCE = {(int(ApiKey.HEARTBEAT), "K"), (int(ApiKey.HEARTBEAT), "J")}
"""Their members may be gone before the first heartbeat is due."""

Versions = dict[tuple[int, str], set[int]]
"""By api key and letter. That of kcat depends on the system: its versions are not told."""


def told() -> Versions:
    rows = re.findall(r"^\| (\d+) \| \w+ \| \d+–\d+ \| ([^|]*) \|", TABLE.read_text(), re.MULTILINE)
    return {
        (int(key), cell[0]): {int(version) for version in cell[1:].split(",") if version}
        for key, cells in rows
        for cell in cells.split()
    }


def seen(recorder: Recorder) -> Versions:
    found: Versions = defaultdict(set)
    for (name, _), asked in recorder.seen.items():
        known = "aiokafka" if name.startswith("aiokafka-") else name
        if letter := LETTERS.get(known):
            for key, versions in asked.items():
                if (int(key), letter) in BY_CHANCE:
                    continue
                found[key.value, letter] |= versions if letter != "K" else set()
    return found


def in_words(versions: Versions) -> list[str]:
    return [f"{key}: {letter}{','.join(map(str, sorted(found)))}" for (key, letter), found in sorted(versions.items())]


def test_the_table_lists_the_requests_that_clients_sent(request: pytest.FixtureRequest, recorder: Recorder) -> None:
    table, found = told(), seen(recorder)
    for asked, versions in found.items():
        assert versions <= table.get(asked, set()), in_words({asked: versions})
        assert asked in table, in_words({asked: versions})
    run = {item.path.name for item in request.session.items}
    if run >= {path.name for path in Path(__file__).parent.glob("test_*.py")}:
        assert in_words(found) == in_words(table)
