"""What is loaded, by which program into which files, and which figures are compared: the rows of the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from bench.lines import event_bytes, log_bytes
from bench.load.drivers import LoadRun
from bench.report import Options, Row, Target, median_or_none

RECORDS = 4_200_000
"""Of one topic at full scale: 1 GB of log lines."""
AVRO, BYTES = "Avro records", "bytes"
OURS, SPARK = "ours", "Spark 4.0"
PROGRAMS = (OURS, SPARK)
CODECS = ("none", "zstd")
PARTITIONS = (4, 1)
FORMATS = ("avro", "parquet")
TARGETS = {"avro": Target(bound=3, at_least=True), "parquet": Target(bound=2, at_least=True)}
WORKER_RSS = Target(bound=500, at_least=False, absolute=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What the topic holds."""

    values: str
    codec: str
    partitions: int
    records: int

    @property
    def name(self) -> str:
        spread = "one hot partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"{self.values}, {self.codec}, {spread}"

    @property
    def payload_bytes(self) -> int:
        return (event_bytes if self.values == AVRO else log_bytes)(self.records)


Runs = Mapping[tuple[str, str], Sequence[LoadRun]]
"""By program and format."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two programs with one topic and one format of files."""

    topic: Topic
    file_format: str

    @property
    def name(self) -> str:
        return f"{self.topic.name} -> {self.file_format}"

    def rows(self, runs: Runs, errors: Mapping[tuple[str, str], str]) -> list[Row]:
        """Its rows, whose errors are those of either program."""
        ours, theirs = ((program, self.file_format) for program in PROGRAMS)
        error = errors.get(ours) or errors.get(theirs) or ""
        rates = [
            median_or_none([self.topic.payload_bytes / 1e6 / run.seconds for run in runs.get(key, ())])
            for key in (ours, theirs)
        ]
        memory = [median_or_none([run.worker_bytes / 1e6 for run in runs.get(key, ())]) for key in (ours, theirs)]
        return [
            Row(
                name=self.name,
                unit="MB/s",
                ours=rates[0],
                peer=SPARK,
                theirs=rates[1],
                target=TARGETS[self.file_format],
                error=error,
            ),
            Row(name=f"{self.name}: RSS of a Python worker", unit="MB", ours=memory[0], target=WORKER_RSS, error=error),
        ]


def comparisons(options: Options) -> list[Comparison]:
    """Those of the selected rows; with `quick` the topics of four partitions."""
    partitions = PARTITIONS[:1] if options.quick else PARTITIONS
    topics = [
        Topic(values=values, codec=codec, partitions=count, records=options.scaled(RECORDS, least=1000))
        for values, codec, count in product((AVRO, BYTES), CODECS, partitions)
    ]
    found = [Comparison(topic, file_format) for topic, file_format in product(topics, FORMATS)]
    return [each for each in found if options.selects(each.name)]
