"""The demo, as a user runs it: exact in every hour, the right answer, nothing left running."""

import gzip
import json
import os
import re
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parents[2] / "pipeline" / "cli" / "demo" / "samples" / "access.log.gz"
DEADLINE_S = 560


@pytest.fixture(scope="module", params=["open", pytest.param("secure", marks=pytest.mark.long)])
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("demo") / "data"
    command = [sys.executable, "-m", "pipeline", "demo", "--json", "--dir", str(directory)]
    command += ["--secure"] if request.param == "secure" else []
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), directory


def path_of(line: str) -> str:
    """The path that was asked for, without method and version of HTTP."""
    found = re.match(r"\S+ (.*?)(?: HTTP/\S+)?$", line.split('"')[1])
    assert found is not None
    return found[1]


def top_pages_of_the_plain_file() -> Any:
    """Computed from the lines alone, with nothing of ours."""
    views: Counter[str] = Counter()
    visitors: dict[str, set[str]] = defaultdict(set)
    for line in gzip.decompress(SAMPLE.read_bytes()).decode().splitlines():
        quoted = line.split('"')
        if quoted[2].split()[0] == "200":
            views[path_of(line)] += 1
            visitors[path_of(line)].add(line.split()[0])
    best = sorted(views, key=lambda path: (-views[path], path))[:10]
    return [[path, views[path], len(visitors[path])] for path in best]


def test_top_pages_are_those_of_the_plain_file(demo: Any) -> None:
    assert demo[0]["top_pages"] == top_pages_of_the_plain_file()


def test_the_audit_of_the_demo_is_exact_for_every_hour(demo: Any) -> None:
    hours = demo[0]["hours"]
    assert len(hours) == 84
    assert {hour["status"] for hour in hours} == {"exact"}
    for stage in ("produced", "live", "replica", "loaded"):
        assert sum(hour["stages"][stage]["records"] for hour in hours) == 10_000


def test_online_consumers_counted_what_was_published_where_they_are(demo: Any) -> None:
    paths: dict[str, Counter[str]] = {"east": Counter(), "west": Counter()}
    for line in gzip.decompress(SAMPLE.read_bytes()).decode().splitlines():
        home = ("east", "west")[zlib.crc32(line.split()[0].encode()) % 2]
        paths[home][path_of(line)] += 1
    best = {name: min(counts.items(), key=lambda item: (-item[1], item[0])) for name, counts in paths.items()}
    assert demo[0]["online"] == {
        name: {"group": "online-page-counts", "records": sum(counts.values()), "top_page": list(best[name])}
        for name, counts in paths.items()
    }


def test_the_second_load_finds_only_what_is_new(demo: Any) -> None:
    first, second = demo[0]["loads"]
    assert (first["commit"], second["commit"]) == (1, 2)
    assert first["records"] == 8000
    assert second["records"] == 2000


def test_the_files_are_there_and_the_processes_are_gone(demo: Any) -> None:
    document, directory = demo
    assert all(Path(path.removeprefix("file://")).is_file() for path in document["files"])
    ours = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(os.fsencode(directory) in argument for argument in arguments):
            ours.append(arguments)
    assert ours == []


def test_no_service_is_refused_anything(demo: Any) -> None:
    """In the secured demo each service has its own user, with no more rights than it needs."""
    _, directory = demo
    logs = [path for name in ("east", "west", "hub") for path in (directory / name).rglob("broker.log")]
    assert len(logs) == 3
    events = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    refused = [event for event in events if event["event"] in ("authorization_denied", "authentication_failed")]
    assert refused == []
