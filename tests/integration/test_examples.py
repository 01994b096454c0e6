"""The programs of examples/ and of docs/client.md, run as they say, on a cluster of their own."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COUNT = 200
DEADLINE_S = 400  # Spark, on a busy machine
PENDING = 5


def run(program: Any, *arguments: Any) -> Any:
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with LocalCluster(registry=True, audit=True, settings={"datacenter": "local", "audit.interval.ms": 200}) as running:
        create = ["topic", "create", "page_views", "--partitions", "2", "-b", running.bootstrap]
        subprocess.run([sys.executable, "-m", "pipeline", *create], check=True, timeout=DEADLINE_S)
        said = run("produce_page_views.py", running.bootstrap, running.registry, str(COUNT))
        assert said == f"{COUNT} page views are acknowledged.\n"
        yield running


def test_the_program_of_the_page_publishes_and_reads(cluster: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    program = tmp_path / "clicks.py"
    program.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    assert re.fullmatch(r"clicks-[01] 0 b'alice' b'/home'\n", run(program, cluster.bootstrap))


def test_the_program_of_the_serialisers_writes_and_reads(cluster: Any, tmp_path: Path) -> None:
    create = ["topic", "create", "orders", "-b", cluster.bootstrap]
    subprocess.run([sys.executable, "-m", "pipeline", *create], check=True, timeout=DEADLINE_S)
    page = (ROOT / "docs" / "registry" / "serialisers.md").read_text()
    program = tmp_path / "orders.py"
    program.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    assert run(program, cluster.bootstrap, cluster.registry) == "{'by': {'name': 'alice'}}\n"
    with urllib.request.urlopen(f"{cluster.registry}/subjects?subjectPrefix=orders", timeout=30) as subjects:
        assert json.load(subjects) == ["orders-value"]


def test_the_program_of_the_producers_page_delivers(cluster: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client" / "producer.md").read_text()
    program = tmp_path / "orders.py"
    program.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    assert run(program, cluster.bootstrap) == "1000 orders are delivered, 0 are not.\n"


def test_the_ways_to_send(cluster: Any) -> None:
    create = ["topic", "create", "sent-orders", "--partitions", "3", "-b", cluster.bootstrap]
    subprocess.run([sys.executable, "-m", "pipeline", *create], check=True, timeout=DEADLINE_S)
    assert run("producer.py", cluster.bootstrap, "sent-orders", "20").splitlines() == [
        "60 orders are delivered, 20 of them large.",
        "0 are not; 0 were reported.",
        "Alice's last order is at offset 19.",
    ]


def test_the_program_of_the_columns_publishes_and_reads_a_table(cluster: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client" / "columns.md").read_text()
    program = tmp_path / "views.py"
    program.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    assert run(program, cluster.bootstrap) == "1000 rows published, 1000 read\n"


def counted_records(cluster: Any, topic: str) -> dict[str, int]:
    """The records of all hours by stage; the verdict on the hour that is being written is pending."""
    command = [sys.executable, "-m", "pipeline", "audit", "report", "--audit", cluster.audit, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert answer.returncode in (0, PENDING), answer.stderr
    found: dict[str, int] = {}
    for hour in json.loads(answer.stdout)["hours"]:
        for stage, counts in hour["stages"].items() if hour["topic"] == topic else ():
            found[stage] = found.get(stage, 0) + counts["records"]
    return found


def test_the_producer_is_counted_and_its_schema_registered(cluster: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while (counted := counted_records(cluster, "page_views")) != {"produced": COUNT, "live": COUNT}:
        assert time.monotonic() < deadline_s, counted
        time.sleep(0.5)
    with urllib.request.urlopen(f"{cluster.registry}/subjects", timeout=30) as subjects:
        assert "page_views-value" in json.load(subjects)


def test_columns_hold_every_record(cluster: Any) -> None:
    lines = run("consume_columns.py", cluster.bootstrap, "page_views").splitlines()
    found = [re.fullmatch(r"partition \d: (\d+) records, \d+ bytes, (\d+) keys", line) for line in lines]
    assert None not in found
    assert sum(int(match[1]) for match in found if match) == COUNT
    assert sum(int(match[2]) for match in found if match) == 10


@pytest.mark.long
def test_members_of_a_group_by_zookeeper_read_what_others_have_left(cluster: Any) -> None:
    create = ["topic", "create", "page_clicks", "-b", cluster.bootstrap]
    subprocess.run([sys.executable, "-m", "pipeline", *create], check=True, timeout=DEADLINE_S)
    arguments = ["consumer_connector.py", cluster.zookeeper, "counters", "page_.*"]
    assert run(*arguments, str(COUNT)).splitlines()[-1] == f"page_views: {COUNT} records"
    publish = ["produce", "page_clicks", "-b", cluster.bootstrap]
    subprocess.run([sys.executable, "-m", "pipeline", *publish], input=b"a\nb\n", check=True, timeout=DEADLINE_S)
    assert run(*arguments, "2").splitlines()[-1] == "page_clicks: 2 records"


@pytest.mark.long
def test_spark_counts_by_key(cluster: Any) -> None:
    lines = run("spark_count_by_key.py", cluster.bootstrap, "page_views").splitlines()
    assert [line.split(",")[0] for line in lines] == [f"user-{number}: {COUNT // 10} records" for number in range(10)]
