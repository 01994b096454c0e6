"""What each client does, with which settings and how many records; and the targets."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.report import Target

CONFLUENT = "confluent-kafka"
AIOKAFKA = "aiokafka"
AIOKAFKA_GETMANY = "aiokafka getmany"
KAFKA_PYTHON = "kafka-python"
KCAT = "kcat"

SIZES = {100: "100 B", 1000: "1 KB"}
CODECS = ("none", "lz4")
PARTITIONS = 4
LINGER_MS = 5
BATCH_BYTES = 256 * 1024
REQUEST_BYTES = 4 << 20
PARTITION_FETCH_BYTES = 4 << 20
FETCH_BYTES = 16 << 20

PRODUCE = "produce"
CONSUME = "consume"

_RECORDS: dict[str | tuple[str, str], int] = {
    "send": 600_000,
    "send_many": 2_000_000,
    "send_columns": 4_000_000,
    (PRODUCE, CONFLUENT): 1_500_000,
    (PRODUCE, AIOKAFKA): 150_000,
    (PRODUCE, KAFKA_PYTHON): 40_000,
    (PRODUCE, KCAT): 2_000_000,
    "records": 2_000_000,
    "batches": 4_000_000,
    "columns": 4_000_000,
    (CONSUME, CONFLUENT): 2_000_000,
    (CONSUME, AIOKAFKA): 800_000,
    (CONSUME, AIOKAFKA_GETMANY): 800_000,
    (CONSUME, KAFKA_PYTHON): 200_000,
    (CONSUME, KCAT): 2_000_000,
}
"""Of one measurement of 100 B at full scale: a second or more of a client that has a core."""
_LARGE_SHARE = {100: 1.0, 1000: 0.25}

OURS = {PRODUCE: ("send", "send_many", "send_columns"), CONSUME: ("records", "batches", "columns")}
PEERS = {
    PRODUCE: (CONFLUENT, AIOKAFKA, KAFKA_PYTHON, KCAT),
    CONSUME: (CONFLUENT, AIOKAFKA, AIOKAFKA_GETMANY, KAFKA_PYTHON, KCAT),
}
TARGETS = {
    ("send", AIOKAFKA): Target(bound=2, at_least=True),
    ("send_columns", CONFLUENT): Target(bound=1.5, at_least=True),
    ("records", AIOKAFKA): Target(bound=1.5, at_least=True),
    ("columns", CONFLUENT): Target(bound=5, at_least=True),
}
FLAT = Target(bound=1.1, at_least=False, absolute=True)
"""Resident memory at its most beside that after the first part of the records."""
MEMORY_RECORDS = 10_000_000
MEMORY_WAYS = {PRODUCE: ("send", "send_columns"), CONSUME: ("records", "columns")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a topic holds."""

    record_bytes: int
    codec: str

    @property
    def name(self) -> str:
        return f"{SIZES[self.record_bytes]}, {self.codec}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One client process: `way` is a method of ours, or the name of a peer."""

    action: str
    way: str
    data: Data
    records: int

    @property
    def is_ours(self) -> bool:
        return self.way in OURS[self.action]

    def on(self, bootstrap: str, topic: str) -> dict[str, Any]:
        """What the process is told."""
        return {**asdict(self), "bootstrap": bootstrap, "topic": topic, "partitions": PARTITIONS}


def usual_records(action: str, way: str, data: Data) -> int:
    count = _RECORDS.get(way) or _RECORDS[action, way]
    return int(count * _LARGE_SHARE[data.record_bytes])


def runs(action: str, data: Data) -> list[Run]:
    """All clients, in the order of a round."""
    ways = (*OURS[action], *PEERS[action])
    return [Run(action=action, way=way, data=data, records=usual_records(action, way, data)) for way in ways]


def scaled(run: Run, records: int) -> Run:
    return replace(run, records=records)
