"""`make test`: all tests in parts, which a few processes of pytest take one after the other, the longest first.

Most tests wait for other processes, so that more of them run at once than there are processors. The tests of a part
share what is started once for all of them: ZooKeeper, Spark, HDFS, Apache Kafka.

    python -m tests.support.suite
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Files and folders below `tests`, but for those that another part has."""

    name: str
    paths: Sequence[str]
    without: Sequence[str] = ()

    @property
    def arguments(self) -> list[str]:
        """For pytest."""
        return [f"tests/{path}" for path in self.paths] + [f"--ignore=tests/{path}" for path in self.without]


SPARK = tuple(
    f"integration/test_{name}.py"
    for name in (
        *("demo", "examples", "hdfs_load", "load", "load_beside_consumers", "load_interruptions", "many_loads"),
        "stream_examples",
    )
)
TABLES = tuple(
    f"integration/test_{name}.py"
    for name in (
        *("export", "iceberg_load", "load_of_truncated_logs", "load_upkeep", "parquet_columns", "pyspark_versions"),
        *(
            "resident_load",
            "sink_attempts",
            "spark_cluster",
            "spark_sink",
            "spark_sink_avro",
            "spark_source",
            "table",
            "x17_no_decode_avro_load",
            "x21_bare_pip_load",
        ),
    )
)
CLUSTERS = tuple(f"faults/test_{name}.py" for name in ("cluster", "kills", "zookeeper", "zookeeper_ensemble"))
MIRROR, BROKER = ("unit/mirror",), ("unit/broker",)
PARTS = (
    Part("simulation", ["simulation"]),
    Part("conformance", ["conformance"]),
    Part("integration", ["integration"], without=[*SPARK, *TABLES]),
    Part("unit", ["unit"], without=[*MIRROR, *BROKER]),
    Part("unit of the broker", BROKER),
    Part("unit of the mirror", MIRROR),
    Part("faults of clusters", CLUSTERS),
    Part("Spark", SPARK),
    Part("tables of loads", TABLES),
    Part("faults", ["faults"], without=CLUSTERS),
)


@dataclass(slots=True)
class Suite:
    """Runs parts, and ends those under way when it is interrupted."""

    under_way: set["subprocess.Popen[bytes]"] = field(default_factory=set)

    def run(self, parts: Sequence[Part]) -> list[str]:
        """Run all; what each says is printed when it ends. Returns the names of those that failed."""
        with ThreadPoolExecutor(PROCESSES) as pool:
            try:
                names = {pool.submit(self._run, part): part.name for part in parts}
                return [names[ended] for ended in as_completed(names) if ended.result() != 0]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self.under_way):
                    process.send_signal(signal.SIGINT)
                raise

    def _run(self, part: Part) -> int:
        say(f"=== {part.name}: begun")
        began_s = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=10", *part.arguments]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal interrupts this process alone: a second interruption ends no teardown
        ) as process:
            self.under_way.add(process)
            output, _ = process.communicate()
            self.under_way.discard(process)
        verdict = "passed" if process.returncode == 0 else f"FAILED ({process.returncode})"
        say(f"{output.decode(errors='replace')}=== {part.name}: {verdict} in {time.monotonic() - began_s:.0f} s\n")
        return process.returncode


def say(text: str) -> None:
    """At once, also where the output is no terminal."""
    print(text + "\n", end="", flush=True)


def main() -> int:
    """Run all parts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    failed = Suite().run(PARTS)
    say(f"=== {'FAILED: ' + ', '.join(failed) if failed else 'all passed'} in {time.monotonic() - began_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
