"""The programs of examples/streams on real brokers, written to and read back by a foreign client.

Each program runs with records, again with new and late records, and once more as after a crash: the last micro batch is
written, Spark has not noted that, and runs it again.
"""

import importlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from examples.streams import abuse_detection, enriched_views, joined_streams, sessions, top_pages, windowed_counts
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import run_load
from pipeline.testing.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "streams"
DEADLINE_S = 400  # Spark, on a busy machine
PARTITIONS = 2
MIDNIGHT_MS = 1_767_571_200_000
"""2026-01-05 00:00 UTC."""
DATE = re.compile(r"2026-01-05[T ](\d\d:\d\d:\d\d)(?:\.000Z)?")
_names = itertools.count(1)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(settings={"log.retention.ms": -1}) as local:
        yield local.bootstrap


@dataclass(frozen=True, slots=True)
class Site:
    """Topics of one test, with names of their own, and the checkpoint of its query."""

    spark: Any
    bootstrap: str
    checkpoint: Path

    def create(self, *names: str) -> list[str]:
        topics = [f"{name}-{next(_names)}" for name in names]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for created in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
            created.result(120)
        return topics

    def produce(self, topic: str, *records: tuple[str, str, str | None]) -> None:
        """Publish records: time of the day, key, value."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for clock, key, value in records:
            hours, minutes, seconds = map(int, clock.split(":"))
            timestamp = MIDNIGHT_MS + (hours * 3600 + minutes * 60 + seconds) * 1000
            producer.produce(topic, value, key, timestamp=timestamp)
        assert producer.flush(180) == 0

    def run(self, program: ModuleType, *topics: str, **options: Any) -> None:
        program.main(self.spark, self.bootstrap, *topics, str(self.checkpoint), **options)

    def run_as_after_a_crash(self, program: ModuleType, *topics: str, **options: Any) -> None:
        """Run again from the checkpoint of a driver that died when the last micro batch was written, but not noted."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink()
        self.run(program, *topics, **options)
        assert (self.checkpoint / "commits" / str(last)).exists()

    def derived(self, topic: str) -> list[tuple[Any, ...]]:
        """Return the fields of all values of a derived topic in a fixed order; times of the day alone."""
        rows = []
        for message in read_all(self.bootstrap, topic):
            key, value = (DATE.sub(r"\1", text.decode()) for text in (message.key(), message.value()))
            rows.append(tuple(json.loads(value).values()))
            assert rows[-1][0] == key
        return sorted(rows, key=repr)


@pytest.fixture
def site(spark: Any, bootstrap: str, tmp_path: Path) -> Iterator[Site]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield Site(spark, bootstrap, tmp_path / "checkpoint")
    spark.conf.set("spark.sql.shuffle.partitions", before)


def read_all(bootstrap: str, topic: str) -> list[Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    messages: list[Any] = []
    ended: set[Any] = set()
    deadline = time.monotonic() + DEADLINE_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(message.partition())
        return messages
    finally:
        consumer.close()


def view(clock: str, user: str, page: str) -> tuple[str, str, str]:
    return clock, user, json.dumps({"user": user, "page": page})


@pytest.mark.long
def test_counts_by_windows(site: Site) -> None:
    views, counts = site.create("page_views", "page_counts")
    site.produce(views, *[view(f"10:00:{second}", "alice", "/home") for second in range(10, 20)])
    site.produce(views, view("10:01:59", "bob", "/home"), view("10:00:59", "bob", "/help"))
    site.produce(views, view("10:04:30", "bob", "/home"))
    site.run(windowed_counts, views, counts)
    first = [("/help", "10:00:00", 1), ("/home", "10:00:00", 10), ("/home", "10:01:00", 1)]
    assert site.derived(counts) == first  # the watermark is 10:02:30
    site.produce(views, view("10:01:00", "late", "/home"), view("10:02:10", "in time", "/help"))
    site.produce(views, view("10:07:00", "bob", "/help"))
    for run in (site.run, site.run_as_after_a_crash):
        run(windowed_counts, views, counts)
        assert site.derived(counts) == sorted([*first, ("/help", "10:02:00", 1), ("/home", "10:04:00", 1)])


@pytest.mark.long
def test_join_of_two_streams(site: Site) -> None:
    impressions, clicks, results = site.create("impressions", "clicks", "ad_results")
    shown = {"ad-1": "10:00:00", "ad-2": "10:00:30", "ad-3": "10:01:00", "ad-4": "10:06:00"}
    clicked = {"ad-1": "10:02:00", "ad-2": "10:02:31", "ad-5": "10:05:00"}
    site.produce(impressions, *[(clock, ad, None) for ad, clock in shown.items()])
    site.produce(clicks, *[(clock, ad, None) for ad, clock in clicked.items()])
    site.run(joined_streams, impressions, clicks, results)
    first = [("ad-1", "10:00:00", "10:02:00"), ("ad-2", "10:00:30", None), ("ad-3", "10:01:00", None)]
    assert site.derived(results) == first  # the watermark is 10:04:00, by the clicks
    site.produce(impressions, ("10:04:50", "ad-5", None), ("10:02:00", "ad-6 late", None), ("10:10:00", "ad-7", None))
    site.produce(clicks, ("10:06:50", "ad-4", None), ("10:01:30", "ad-3", None), ("10:10:00", "none", None))
    second = [*first, ("ad-4", "10:06:00", "10:06:50"), ("ad-5", "10:04:50", "10:05:00")]
    for run in (site.run, site.run_as_after_a_crash):
        run(joined_streams, impressions, clicks, results)
        assert site.derived(results) == second


@pytest.mark.long
def test_sessions(site: Site) -> None:
    views, visits = site.create("page_views", "visits")
    site.produce(views, *[view(f"10:0{minute}:00", "alice", "/home") for minute in (0, 2)])
    site.produce(views, view("10:10:00", "alice", "/home"), view("10:01:00", "bob", "/home"))
    site.produce(views, view("10:03:30", "carol", "/home"), view("10:10:00", "carol", "/home"))
    site.run(sessions, views, visits)
    first = [("alice", "10:00:00", "10:02:00", 2), ("bob", "10:01:00", "10:01:00", 1)]
    assert site.derived(visits) == first  # the watermark is 10:08:00
    site.produce(views, view("10:02:30", "alice", "/late"), view("10:06:00", "alice", "/joins the visit of 10:10"))
    site.produce(views, view("10:07:00", "carol", "/makes one visit of two"), view("10:20:00", "bob", "/home"))
    second = sorted([*first, ("alice", "10:06:00", "10:10:00", 2), ("carol", "10:03:30", "10:10:00", 3)])
    for run in (site.run, site.run_as_after_a_crash):
        run(sessions, views, visits)
        assert site.derived(visits) == second


@pytest.mark.long
def test_top_pages(site: Site) -> None:
    views, top = site.create("page_views", "top_pages")
    for page, count in {"/a": 3, "/b": 2, "/c": 2, "/d": 1}.items():
        site.produce(views, *[view(f"10:03:0{second}", "alice", page) for second in range(count)])
    site.produce(views, view("10:07:30", "alice", "/a"))
    site.run(top_pages, views, top)
    first = ("10:00:00", [{"page": "/a", "views": 3}, {"page": "/b", "views": 2}, {"page": "/c", "views": 2}])
    assert site.derived(top) == [first]  # the watermark is 10:05:30
    site.produce(views, *[view("10:04:00", "late", "/d")] * 3, *[view("10:05:20", "in time", "/z")] * 2)
    site.produce(views, view("10:12:30", "alice", "/a"))
    for run in (site.run, site.run_as_after_a_crash):
        run(top_pages, views, top)
        assert site.derived(top) == [first, ("10:05:00", [{"page": "/z", "views": 2}, {"page": "/a", "views": 1}])]


@pytest.mark.long
def test_abuse_detection(site: Site) -> None:
    requests, abuse = site.create("requests", "abuse")
    site.produce(requests, *[("10:00:02", "at the limit", None)] * 10, *[("10:00:12", "above it", None)] * 11)
    site.produce(requests, *[("10:00:09", "over a border", None)] * 6, *[("10:00:11", "over a border", None)] * 6)
    site.produce(requests, ("10:00:24", "alice", None))
    site.run(abuse_detection, requests, abuse)
    first = [("above it", "10:00:05", 11), ("over a border", "10:00:05", 12)]
    assert site.derived(abuse) == first  # the watermark is 10:00:19
    site.produce(requests, ("10:00:13", "above it", None), *[("10:00:08", "late", None)] * 11)
    site.produce(requests, ("10:00:30", "alice", None))
    for run in (site.run, site.run_as_after_a_crash):
        run(abuse_detection, requests, abuse)
        assert site.derived(abuse) == [("above it", "10:00:05", 11), ("above it", "10:00:10", 12), first[1]]


def country(user: str, name: str | None) -> tuple[str, str, str | None]:
    return "09:00:00", user, json.dumps({"country": name}) if name else None


@pytest.mark.long
def test_views_with_profiles(site: Site, tmp_path: Path) -> None:
    """The store is the topic of profiles first, then what was loaded of it: a query may change its store."""
    views, enriched, profiles = site.create("page_views", "enriched_views", "profiles")
    site.produce(profiles, country("alice", "SE"), country("bob", "DE"), country("alice", "NO"))
    site.produce(profiles, country("carol", "FR"), country("carol", None))
    site.produce(views, *[view("10:00:00", user, "/home") for user in ("alice", "carol", "dave")])
    site.run(enriched_views, views, enriched, profiles=profiles)
    first = [("alice", "/home", "NO"), ("carol", "/home", None), ("dave", "/home", None)]
    assert site.derived(enriched) == first
    site.produce(profiles, country("bob", "FI"))
    root = (tmp_path / "lake").as_uri()
    load = {"bootstrap.servers": site.bootstrap, "topic": profiles, "root": root, "value.format": "binary"}
    run_load(site.spark, LoadConfig.from_settings(load), clock=lambda: time.time_ns() // 1_000_000)
    site.produce(views, view("10:00:01", "bob", "/home"), view("09:00:00", "alice", "/an hour late"))
    second = sorted([*first, ("bob", "/home", "FI"), ("alice", "/an hour late", "NO")], key=repr)
    for run in (site.run, site.run_as_after_a_crash):
        run(enriched_views, views, enriched, table=f"{root}/{profiles}")
        assert site.derived(enriched) == second


@pytest.mark.long
def test_a_program_runs_by_its_command_until_it_is_stopped(site: Site) -> None:
    """The profiles stay those of the program's start."""
    views, enriched, profiles = site.create("page_views", "enriched_views", "profiles")
    site.produce(profiles, country("alice", "SE"))
    site.produce(views, view("10:00:00", "alice", "/home"))
    arguments = [site.bootstrap, views, enriched, str(site.checkpoint), "--profiles", profiles, "--continuous"]
    command = [sys.executable, str(PROGRAMS / "enriched_views.py"), *arguments]
    log = site.checkpoint.with_name("log")
    with log.open("wb") as output:
        program = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def wait_for_views(*expected: tuple[str, str, str]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(found := site.derived(enriched)) < len(expected):
            assert program.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline
        assert found == list(expected)

    try:
        wait_for_views(("alice", "/home", "SE"))
        site.produce(profiles, country("alice", "NO"))
        site.produce(views, view("10:00:01", "alice", "/home"))
        wait_for_views(("alice", "/home", "SE"), ("alice", "/home", "SE"))
    finally:
        program.terminate()
        program.wait(timeout=DEADLINE_S)


def test_the_page_names_each_program_with_a_command_that_it_accepts() -> None:
    page = (ROOT / "docs" / "load" / "streams.md").read_text()
    commands = [shlex.split(line) for line in re.findall(r"python examples/streams/(\S+ .*)", page)]
    programs = {Path(name).stem: arguments for name, *arguments in commands}
    assert programs.keys() == {path.stem for path in PROGRAMS.glob("*.py")}
    for name, arguments in programs.items():
        parsed = importlib.import_module(f"examples.streams.{name}").arguments().parse_args(arguments)
        assert parsed.checkpoint.endswith(name)
