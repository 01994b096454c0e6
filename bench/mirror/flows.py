"""What is copied, from where to where, and which figures are compared: the rows of the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from bench.broker.servers import KAFKA, OURS
from bench.lines import log_bytes
from bench.report import Options, Row, Target, median_or_none

RECORDS = 4_200_000
"""Of one topic at full scale: 1 GB of log lines."""
CODECS = ("none", "lz4", "zstd")
PARTITIONS = (4, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What the topic of the source holds."""

    codec: str
    partitions: int
    records: int

    @property
    def name(self) -> str:
        return f"{self.codec}, {self.partitions} partitions"

    @property
    def payload_bytes(self) -> int:
        return log_bytes(self.records)

    @property
    def counts(self) -> dict[int, int]:
        """Records by partition: they take turns."""
        return {number: len(range(number, self.records, self.partitions)) for number in range(self.partitions)}


@dataclass(frozen=True, slots=True)
class Flow:
    """A mirror between servers of these kinds."""

    name: str
    source: str
    destination: str


DEFAULT = Flow("MirrorMaker 2, default", KAFKA, KAFKA)
TUNED = Flow("MirrorMaker 2, tuned", KAFKA, KAFKA)
FROM_KAFKA = Flow("Apache Kafka to ours", KAFKA, OURS)
OWN = Flow("ours to ours", OURS, OURS)
RECOMPRESSING = Flow("ours to ours, recompressed to zstd", OURS, OURS)
"""Runs beside OWN, with data that are not zstd."""
PEERS = {FROM_KAFKA: (TUNED, DEFAULT), OWN: (TUNED,)}
"""Flows of our mirror, each with those that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Figures of one run: payload in MB/s after the start, CPU in s/GB of payload, memory in MB, the start in s."""

    payload: float
    mirror_cpu: float
    all_cpu: float
    peak_rss: float
    first_record: float


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of `Copied`, by its field. `against_tuned` is the target of the comparison with the tuned peer."""

    field: str
    name: str
    unit: str
    against_tuned: Target

    def of(self, copied: Copied) -> float:
        value: float = getattr(copied, self.field)
        return value


MEASURES = (
    Measure("payload", "payload", "MB/s", Target(bound=15, at_least=True)),
    Measure("mirror_cpu", "CPU of the mirror", "s/GB", Target(bound=1 / 40, at_least=False)),
    Measure("all_cpu", "CPU of all", "s/GB", Target(bound=1, at_least=False)),
    Measure("peak_rss", "peak RSS of the mirror", "MB", Target(bound=120, at_least=False, absolute=True)),
    Measure("first_record", "first record", "s", Target(bound=1, at_least=False, absolute=True)),
)


ZSTD_PAYLOAD = Target(bound=20, at_least=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row to be: a flow of ours beside a peer, about one figure. Without a peer there is only our own."""

    data: Data
    flow: Flow
    peer: Flow | None
    measure: Measure

    @property
    def name(self) -> str:
        return f"{self.data.name}, {self.flow.name}: {self.measure.name}"

    def row(self, found: Mapping[Flow, list[Copied]], errors: Mapping[Flow, str]) -> Row:
        """The medians of all rounds; with an error of either flow no figure of it counts."""
        flows = [self.flow] if self.peer is None else [self.flow, self.peer]
        ours, theirs = (
            median_or_none([] if flow is None or flow in errors else [self.measure.of(each) for each in found[flow]])
            for flow in (self.flow, self.peer)
        )
        return Row(
            name=self.name,
            unit=self.measure.unit,
            ours=ours,
            peer="" if self.peer is None else self.peer.name,
            theirs=theirs,
            target=None if self.peer in (DEFAULT, OWN) or self._is_alone_with_a_ratio else self._target,
            error="; ".join(f"{flow.name}: {errors[flow]}" for flow in flows if flow in errors),
        )

    @property
    def _target(self) -> Target:
        return (
            ZSTD_PAYLOAD if (self.measure.field, self.data.codec) == ("payload", "zstd") else self.measure.against_tuned
        )

    @property
    def _is_alone_with_a_ratio(self) -> bool:
        return self.peer is None and not self.measure.against_tuned.absolute


def comparisons(options: Options) -> list[list[Comparison]]:
    """The selected rows, by the data they are about. A quick run leaves out lz4 and 64 partitions."""
    records = options.scaled(RECORDS, least=10_000)
    found = []
    for partitions, codec in product(PARTITIONS, CODECS):
        if options.quick and (codec == "lz4" or partitions != PARTITIONS[0]):
            continue
        data = Data(codec=codec, partitions=partitions, records=records)
        peers: dict[Flow, tuple[Flow | None, ...]] = {OWN: (None,)} if options.alone else {**PEERS}
        if codec != "zstd" and partitions == PARTITIONS[0]:
            peers[RECOMPRESSING] = (OWN,)
        group = [
            Comparison(data, flow, peer, measure)
            for flow, others in peers.items()
            for peer in others
            for measure in MEASURES
        ]
        group = [each for each in group if options.selects(each.name)]
        if group:
            found.append(group)
    return found


def flows_of(group: list[Comparison]) -> list[Flow]:
    """The flows that these rows need, each once."""
    return list(dict.fromkeys(flow for each in group for flow in (each.flow, each.peer) if flow is not None))
