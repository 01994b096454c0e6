"""`make test`: all tests in parts, which a few processes of pytest take one after the other, the longest first.

Most tests wait for other processes, so that more of them run at once than there are processors. The tests of a part
share what is started once for all of them: ZooKeeper, Spark, HDFS, Apache Kafka.

At most three tests that failed run once more, alone, when all parts have ended: what fails then is at fault by itself.
A test that passes then is named at the end; it expects too much of a busy machine, or shows a rare fault.

    python -m tests.support.suite
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROCESSES = 6
MAX_REPEATED = 3
"""More failures than these are no accident."""

TESTS_FAILED = 1
"""The exit code of pytest if all of a part ran, and some tests failed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Files and folders below `tests`, but for those that another part has."""

    name: str
    paths: Sequence[str]
    without: Sequence[str] = ()
    options: Sequence[str] = ()

    @property
    def arguments(self) -> list[str]:
        """For pytest."""
        paths = [f"tests/{path}" for path in self.paths] + [f"--ignore=tests/{path}" for path in self.without]
        return [*self.options, *paths]


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
COMMANDS = tuple(
    f"integration/test_{name}.py"
    for name in (
        *("admin", "cli", "cli_cluster", "cli_interruptions", "cli_local", "cli_perf", "cli_processes", "cli_records"),
        "local_cluster",
    )
)
NET = ("unit/net",)
SECURITY = tuple(
    f"integration/test_{name}.py"
    for name in (
        *("attacks_by_certificates", "attacks_by_guessing", "attacks_by_strangers", "attacks_by_users"),
        *("local_roles", "local_secure", "local_security"),
        *("secured_cluster", "secured_http", "secured_listeners", "secured_pages", "secured_services"),
        *("secured_spark", "secured_zookeeper"),
    )
)
CLIENTS = ("unit/cli", "unit/client")
MIRROR, BROKER, REGISTRY = ("unit/mirror",), ("unit/broker",), ("unit/schema_registry",)
AUDIT = ("unit/audit",)
SITES = tuple(f"simulation/test_{name}.py" for name in ("audit_matrix", "audited_sites", "sites"))
LOG = ("unit/log", "unit/protocol", "unit/records")
PARTS = (
    Part("unit of the broker", BROKER),
    Part("unit of clients and commands", CLIENTS),
    Part("unit of the mirror", MIRROR),
    Part("integration", ["integration"], without=[*COMMANDS, *SPARK, *TABLES, *SECURITY]),
    Part("conformance", ["conformance"]),
    Part("Spark", SPARK),
    Part("unit", ["unit"], without=[*CLIENTS, *MIRROR, *BROKER, *REGISTRY, *AUDIT, *NET, *LOG]),
    Part("unit of the log", LOG),
    Part("unit of the audit", AUDIT),
    Part("tables of loads", TABLES),
    Part("faults", ["faults"], without=CLUSTERS),
    Part("commands", COMMANDS),
    Part("security", [*SECURITY, *NET]),
    Part("simulated sites", SITES),
    Part("simulated clusters", ["simulation"], without=SITES),
    Part("unit of the registry", REGISTRY),
    Part("faults of clusters", CLUSTERS),
)


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended."""

    name: str
    exit_code: int
    failed: tuple[str, ...]
    """Ids of tests, as pytest takes them."""
    duration_s: float


@dataclass(slots=True)
class Suite:
    """Runs parts, and ends those under way when it is interrupted."""

    root: Path = ROOT
    processes: int = PROCESSES
    on_end: Callable[[PartResult], None] = lambda result: None
    """Is told of each part that has ended."""
    under_way: set["subprocess.Popen[bytes]"] = field(default_factory=set)

    def run(self, parts: Sequence[Part]) -> str:
        """Run all; what each says is printed when it ends. Returns what failed, "" if nothing did."""
        with ThreadPoolExecutor(self.processes) as pool:
            try:
                ended = [done.result() for done in as_completed(pool.submit(self._run, part) for part in parts)]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self.under_way):
                    process.send_signal(signal.SIGINT)
                raise
        failed = [result for result in ended if result.exit_code != 0]
        tests = [test for result in failed for test in result.failed]
        is_other = any(result.exit_code != TESTS_FAILED or not result.failed for result in failed)
        if not tests or len(tests) > MAX_REPEATED or is_other:
            return ", ".join(result.name for result in failed)
        again = [test.removeprefix("tests/") for test in tests]
        repeated = self._run(Part("those that failed, alone", again, options=parts[0].options))
        if repeated.exit_code == 0:
            say(f"=== passed alone, but failed beside others: {', '.join(tests)}")
        return "" if repeated.exit_code == 0 else ", ".join(repeated.failed or tests)

    def _run(self, part: Part) -> PartResult:
        say(f"=== {part.name}: begun")
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            # Of its own: parts that end at the same time delete old directories of one another otherwise.
            options = ["-o", f"cache_dir={directory}/cache", f"--basetemp={directory}/tests", "--durations=10"]
            with subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *part.arguments],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal interrupts this process alone: a second one ends no teardown
            ) as process:
                self.under_way.add(process)
                output, _ = process.communicate()
                self.under_way.discard(process)
            failed = Path(directory, "cache/v/cache/lastfailed")
            tests = tuple(json.loads(failed.read_bytes())) if failed.exists() else ()
        result = PartResult(part.name, process.returncode, tests, time.monotonic() - began_s)
        verdict = "passed" if process.returncode == 0 else f"FAILED ({process.returncode})"
        say(f"{output.decode(errors='replace')}=== {part.name}: {verdict} in {result.duration_s:.0f} s\n")
        self.on_end(result)
        return result


def say(text: str) -> None:
    """At once, also where the output is no terminal."""
    print(text + "\n", end="", flush=True)


def main() -> int:
    """Run all parts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    failed = Suite().run(PARTS)
    say(f"=== {f'FAILED: {failed}' if failed else 'all passed'} in {time.monotonic() - began_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
