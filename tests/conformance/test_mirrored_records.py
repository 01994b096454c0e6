"""Every client writes to a live datacenter with every codec; every client reads the same records from the hub."""

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.programs.exchange import decoded, encoded
from tests.support.clients import read_with_kcat, run_client, wait_for, write_with_kcat
from tests.support.datacenters import running_datacenters

pytestmark = pytest.mark.long

PROGRAMS = {"confluent-kafka": "confluent_client", "aiokafka": "aiokafka_client", "kafka-python": "kafka_python_client"}
CLIENTS = [*PROGRAMS, "kcat"]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
LIVE = ("east", "west")
DEADLINE_S = 180

FIRST_TIMESTAMP_MS = 1_431_849_903_000
NOISE = random.Random(4).randbytes(100_000)
TEXT = b"83.149.9.216 - - GET /presentations/logstash/images/kibana-search.png HTTP/1.1 200 " * 1250

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

RECORDS: list[Record] = [
    (b"key", b"value", [("trace", b"\xff\x00\x80"), ("empty", b""), ("null", None), ("trace", b"twice")], 0),
    (None, b"no key", [], 5000),
    (b"gone", None, [("reason", b"deleted")], 4000),
    (b"", b"", [], 3000),
    (b"bare", None, [], 2000),
    (b"noise", NOISE, [], 1000),
    (b"text", TEXT, [("kind", b"log")], 1000),
    *((b"%d" % number, b"small value %d" % number, [], number) for number in range(300)),
]

KCAT_GROUPS: list[tuple[list[str], list[tuple[bytes, bytes | None]], list[tuple[str, bytes | None]]]] = [
    ([], [(b"key", b"value"), (b"", b""), (b"text", TEXT)], []),
    (["-Z"], [(b"gone", None)], []),
    (
        ["-H", "trace=1", "-H", "null", "-H", "empty=", "-H", "trace=2"],
        [(b"headers", b"value")],
        [
            ("trace", b"1"),
            ("null", None),
            ("empty", b""),
            ("trace", b"2"),
        ],
    ),
    ([], [(b"%d" % number, b"small value %d" % number) for number in range(300)], []),
]


def headers_of(writer: str, headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """kafka-python writes no null header values, though it reads them."""
    return [header for header in headers if header[1] is not None or writer != "kafka-python"]


def expected_of(writer: str) -> list[tuple[Any, ...]]:
    """Key, value, headers and timestamp; kcat leaves the time to the clock."""
    if writer != "kcat":
        return [
            (key, value, headers_of(writer, headers), FIRST_TIMESTAMP_MS + delay)
            for key, value, headers, delay in RECORDS
        ]
    return [(key, value, headers, None) for _, lines, headers in KCAT_GROUPS for key, value in lines]


@dataclass
class Mirrored:
    """What was read from the hub, by (reader, writer, codec), and when it was written."""

    records: dict[tuple[str, str, str], list[tuple[Any, ...]]]
    began_ms: int
    ended_ms: int


def as_seen_by(reader: str, fields: list[Any]) -> list[Any]:
    """kcat prints header values up to their first zero byte."""
    key, value, headers = fields
    if reader == "kcat":
        headers = [(name, data and data.partition(b"\0")[0]) for name, data in headers]
    return [key, value, headers]


def topic_of(writer: str, codec: str) -> str:
    return f"from-{writer}-{codec}"


def datacenter_of(writer: str, codec: str) -> str:
    """Half of each client's topics in the east, half in the west."""
    return LIVE[(CLIENTS.index(writer) + CODECS.index(codec)) % len(LIVE)]


def create_topics(bootstrap: dict[str, str]) -> None:
    for datacenter in LIVE:
        names = [topic_of(*pair) for pair in itertools.product(CLIENTS, CODECS) if datacenter_of(*pair) == datacenter]
        admin = AdminClient({"bootstrap.servers": bootstrap[datacenter]})
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            future.result(DEADLINE_S)


def as_json(writer: str) -> list[list[Any]]:
    return [
        [encoded(key), encoded(value), [[name, encoded(data)] for name, data in headers], timestamp_ms]
        for key, value, headers, timestamp_ms in expected_of(writer)
    ]


def write_all(bootstrap: dict[str, str]) -> None:
    for writer, datacenter in itertools.product(PROGRAMS, LIVE):
        topics = [
            {"name": topic_of(writer, codec), "codec": codec, "records": as_json(writer)}
            for codec in CODECS
            if datacenter_of(writer, codec) == datacenter
        ]
        run_client(PROGRAMS[writer], "write", bootstrap[datacenter], {"topics": topics})
    for codec in CODECS:
        for options, lines, _ in KCAT_GROUPS:
            given = [(key, value or b"") for key, value in lines]
            write_with_kcat(bootstrap[datacenter_of("kcat", codec)], topic_of("kcat", codec), codec, given, options)


def wait_until_mirrored(hub: str, counts: dict[str, int]) -> None:
    consumer = Consumer({"bootstrap.servers": hub, "group.id": "unused"})
    known: set[str] = set()

    def all_there() -> bool:
        known.update(consumer.list_topics(timeout=DEADLINE_S).topics)
        return known >= counts.keys() and all(
            consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_S)[1] >= count
            for name, count in counts.items()
        )

    wait_for("mirrored", all_there)
    consumer.close()


def read_all(hub: str, counts: dict[str, int]) -> dict[tuple[str, str, str], list[tuple[Any, ...]]]:
    found: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {}
    for reader, program in PROGRAMS.items():
        of_topics = run_client(program, "read", hub, {"counts": counts})
        for writer, codec in itertools.product(CLIENTS, CODECS):
            found[reader, writer, codec] = [
                (offset, decoded(key), decoded(value), [(name, decoded(data)) for name, data in headers], timestamp_ms)
                for offset, key, value, headers, timestamp_ms in of_topics[topic_of(writer, codec)]
            ]
    for writer, codec in itertools.product(CLIENTS, CODECS):
        found["kcat", writer, codec] = read_with_kcat(hub, topic_of(writer, codec))
    return found


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    counts = {topic_of(writer, codec): len(expected_of(writer)) for writer in CLIENTS for codec in CODECS}
    with running_datacenters(tmp_path_factory.mktemp("datacenters"), ["from-.*"]) as bootstrap:
        create_topics(bootstrap)
        began_ms = int(time.time() * 1000)
        write_all(bootstrap)
        ended_ms = int(time.time() * 1000)
        wait_until_mirrored(bootstrap["hub"], counts)
        yield Mirrored(read_all(bootstrap["hub"], counts), began_ms, ended_ms)


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_records_of_the_hub_are_those_that_were_written(
    mirrored: Mirrored, writer: str, codec: str, reader: str
) -> None:
    found = mirrored.records[reader, writer, codec]
    expected = expected_of(writer)
    assert [offset for offset, *_ in found] == list(range(len(expected)))
    for (_, *fields, timestamp_ms), (*expected_fields, expected_ms) in zip(found, expected, strict=True):
        assert fields == as_seen_by(reader, expected_fields)
        if expected_ms is None:
            assert mirrored.began_ms <= timestamp_ms <= mirrored.ended_ms
        else:
            assert timestamp_ms == expected_ms
