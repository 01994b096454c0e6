"""What the clients do: the rows of the table, in groups that share the size, codec and partitions of a topic."""

from dataclasses import dataclass, replace
from itertools import product

from bench.report import Options, Target

CONFLUENT = "confluent-kafka"
JAVA = "Java"
CLIENTS = (CONFLUENT, JAVA)
SIZES = {100: "100 B", 1000: "1 KB", 10_000: "10 KB"}
RECORDS = {100: 1_500_000, 1000: 400_000, 10_000: 50_000}
"""Of one measurement at full scale: some seconds of a client that has a core."""

THROUGHPUT = Target(bound=1.0, at_least=True)
THROUGHPUT_1_KB = Target(bound=1.3, at_least=True)
LATENCY_P99 = Target(bound=1.2, at_least=False)
CPU = Target(bound=1.0, at_least=False)
RESIDENT = Target(bound=0.15, at_least=False)

LATENCY_RATES = (1000, 10_000)
LATENCY_RECORD_BYTES = 1000
LATENCY_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What a topic holds."""

    record_bytes: int
    codec: str = "none"
    partitions: int = 1

    @property
    def name(self) -> str:
        partitions = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        return f"{SIZES[self.record_bytes]}, {self.codec}, {partitions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one client process does: `action` is produce or consume."""

    action: str
    client: str
    data: Data
    records: int
    acks: str = "all"
    batch_bytes: int | None = None
    """None: the default of the client."""
    target: Target = THROUGHPUT

    @property
    def name(self) -> str:
        acks = f", acks={self.acks}" if self.action == "produce" else ""
        batches = "" if self.batch_bytes is None else f", batches of {self.batch_bytes // 1024} KB"
        return f"{self.action} {self.data.name}{acks}{batches}, {self.client}"

    @property
    def cpu_name(self) -> str:
        return f"CPU {self.name}"

    @property
    def gigabytes(self) -> float:
        return self.records * self.data.record_bytes / 1e9


def groups(options: Options) -> list[list[Workload]]:
    """The selected workloads, by the data they are about. A quick run leaves out most codecs, partitions and acks."""
    data = [Data(record_bytes=size, codec=codec) for size, codec in product(SIZES, ("none", "lz4"))]
    data += [
        Data(record_bytes=1000, codec=codec, partitions=count) for count, codec in product((10, 100), ("none", "lz4"))
    ]
    if options.quick:
        data = [each for each in data if each.codec == "none" or each == Data(record_bytes=1000, codec="lz4")]
    found = []
    for each in data:
        records = options.scaled(RECORDS[each.record_bytes], least=1000)
        acks = ("1", "all") if each.partitions == 1 and not options.quick else ("all",)
        target = THROUGHPUT_1_KB if each.record_bytes == 1000 else THROUGHPUT
        base = Workload(action="produce", client=CONFLUENT, data=each, records=records, target=target)
        group = [replace(base, client=client, acks=ack) for client, ack in product(CLIENTS, acks)]
        group += [replace(base, action="consume", client=client) for client in CLIENTS]
        group = [work for work in group if options.selects(work.name) or options.selects(work.cpu_name)]
        if group:
            found.append(group)
    return found
