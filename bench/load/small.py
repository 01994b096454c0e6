"""Small loads as a user runs them: from the start of the command to its commit, or to its end without new records."""

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.broker.clients import confluent, create_topic, delete_topic
from bench.broker.servers import Server
from bench.lines import LOG_LINES
from bench.report import Options, Row, Show, Target, median_or_none
from pipeline.hadoop.commit.layout import topic_layout

RECORDS = 10_000
SMALL, EMPTY = "small load, 10,000 records: start to commit", "empty load: the whole command"
TARGETS = {SMALL: 8.0, EMPTY: 1.0}
COMMAND_S = 300


def measure_small(options: Options, server: Server, rounds: int, directory: Path, show: Show) -> list[Row]:
    """A load into a new table, and one after it that finds nothing new."""
    if not any(map(options.selects, TARGETS)):
        return []
    topic = create_topic(server, 4)
    asked = {"action": "produce", "payloads": LOG_LINES, "records": RECORDS, "codec": "none", "partitions": 4}
    confluent(server, topic, {**asked, "acks": "all"})
    taken_s: dict[str, list[float]] = {SMALL: [], EMPTY: []}
    error = ""
    for number in range(rounds):
        show(f"small loads: round {number + 1} of {rounds}")
        for name, committed in ((SMALL, RECORDS), (EMPTY, 0)):
            root = directory / str(number)
            started_s = time.time()
            seconds, records = _command(server, topic, root)
            taken_s[name].append(_committed_s(root, topic) - started_s if committed else seconds)
            if records != committed:
                error = f"{records} records were loaded, expected {committed}"
    delete_topic(server, topic)
    return [
        Row(
            name=name,
            unit="s",
            ours=median_or_none(taken_s[name]),
            target=Target(bound=bound, at_least=False, absolute=True),
            error=error,
        )
        for name, bound in TARGETS.items()
        if options.selects(name)
    ]


def _command(server: Server, topic: str, root: Path) -> tuple[float, int]:
    """Seconds of the whole command, and records that it loaded."""
    command = [sys.executable, "-m", "pipeline", "load", "run", "--topic", topic, "--root", f"file://{root}"]
    command += ["-b", server.bootstrap, "--set", "value.format=binary", "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=True)
    seconds = time.perf_counter() - started
    return seconds, int(json.loads(done.stdout)["records"])


def _committed_s(root: Path, topic: str) -> float:
    """Time of the first commit, when the manifest got its name; the name it had before is deleted right after."""
    return Path(topic_layout(str(root), topic).manifest(1)).stat().st_ctime
