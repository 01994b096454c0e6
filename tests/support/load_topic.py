"""A topic that is filled and loaded step by step, and the proof that what is committed is exact."""

import io
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic

from pipeline.hadoop.commit.checkpoints import read_manifests, table_of
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.filesystem import open_filesystem

FIRST_MS = 1_700_000_000_000
MINUTE_MS = 60_000
_names = itertools.count(1)


@dataclass
class LoadedTopic:
    """Values are numbers from 0 on, one a minute, over three partitions."""

    bootstrap: str
    root: str
    name: str = field(default_factory=lambda: f"loaded-{next(_names)}")
    produced: int = 0
    acknowledged: dict[Any, Any] = field(default_factory=dict)
    """Values by partition and offset, as the brokers acknowledged them to `produce`."""

    def __post_init__(self) -> None:
        topic = ConfluentTopic(self.name, 3, config={"retention.ms": "-1"})  # the records are older than the default
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([topic])[self.name].result(120)

    def produce(self, count: int, value: Any = lambda number: b"%d" % number) -> None:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[message.partition(), message.offset()] = message.value()

        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": "lz4", "linger.ms": 5})
        for number in range(self.produced, self.produced + count):
            timestamp = FIRST_MS + number * MINUTE_MS // 100
            producer.produce(
                self.name,
                value(number),
                b"k%d" % number,
                timestamp=timestamp,
                headers=[("host", b"web1")],
                on_delivery=note,
            )
            producer.poll(0)
        assert producer.flush(180) == 0
        self.produced += count

    def settings(self, **more: Any) -> Any:
        return {
            "bootstrap.servers": self.bootstrap,
            "topic": self.name,
            "root": self.root,
            "value.format": "binary",
            "max.records.per.task": 1000,
        } | more

    def manifests(self) -> Any:
        return read_manifests(self.root, self.name)

    def table(self) -> TableState:
        return table_of(self.root, self.name)

    def rows(self) -> Iterator[Any]:
        """All committed rows, as plain values, in no order."""
        files, path = open_filesystem(self.root)
        for file in self.table().data_files():
            content = files.read(f"{path}/{self.name}/{file.path}")
            assert len(content) == file.bytes
            rows: list[Any] = (
                pq.read_table(io.BytesIO(content)).to_pylist()
                if file.path.endswith(".parquet")
                else list(fastavro.reader(io.BytesIO(content)))
            )
            assert len(rows) == file.records
            yield from rows

    def check_exact(self) -> int:
        """Every committed value once, offsets without a hole up to the manifest's; returns how many."""
        rows = list(self.rows())
        offsets = Counter((row["_partition"], row["_offset"]) for row in rows)
        ends = self.table().offsets
        assert offsets == Counter((partition, offset) for partition, end in ends.items() for offset in range(end))
        numbers = Counter(int(row["value"]) for row in rows)
        assert not numbers or max(numbers.values()) == 1
        for row in rows:
            assert row["_key"] == b"k%d" % int(row["value"])
            assert row["_headers"] == [{"key": "host", "value": b"web1"}]
        assert sum(count.records for count in self.table().counts.values()) == len(rows)
        return len(rows)

    def check_equal(self) -> int:
        """As `check_exact`, and each value at the offset that the brokers acknowledged for it."""
        count = self.check_exact()
        ends = self.table().offsets
        committed = {(row["_partition"], row["_offset"]): row["value"] for row in self.rows()}
        assert committed == {at: value for at, value in self.acknowledged.items() if at[1] < ends.get(at[0], 0)}
        return count

    def files_on_disk(self) -> int:
        files, path = open_filesystem(self.root)
        return len(files.list_files(f"{path}/{self.name}/hourly", recursive=True))
