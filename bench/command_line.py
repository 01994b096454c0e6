"""`pipeline produce` and `pipeline consume` beside kcat, over our broker: whole commands, with their start.

The rows "wall" divide kcat's time by ours, from the start of the process to its end; "processor" do the same with the
time of the processor that the command itself took. Rounds take turns; the median counts.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from bench.broker.servers import our_broker
from bench.lines import log_lines
from bench.report import Options, Row, Show, Target
from tests.support.clients import UNPACKED_KCAT

RECORDS = 1_000_000
ROUNDS = 3
SIZES = (100, 1000)
OURS = (sys.executable, "-m", "pipeline")
TARGET = Target(bound=1.0, at_least=True)


def measure(options: Options, show: Show) -> list[Row]:
    """Rows for lines of 100 B and 1 KB in both directions."""
    found: list[Row] = []
    records = options.scaled(RECORDS, least=1000)
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory,
        our_broker(Path(directory, "ours")) as server,
    ):
        server.start()
        for size in SIZES[: 1 if options.quick else None]:
            path = Path(directory, "lines")
            _write_lines(path, size, records if size == SIZES[0] else records // 5)
            found += _compare(options, server.bootstrap, path, size, show)
    return [row for row in found if options.selects(row.name)]


def _write_lines(path: Path, size: int, count: int) -> None:
    texts = log_lines()
    text = b" ".join(next(texts) for _ in range(20_000)).replace(b"\n", b" ")
    with path.open("wb") as file:
        for number in range(count):
            start = number * 7919 % (len(text) - size)
            file.write(text[start : start + size - 1] + b"\n")


def _compare(options: Options, bootstrap: str, path: Path, size: int, show: Show) -> list[Row]:
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for turn in range(options.rounds_or(ROUNDS)):
        topic = f"lines-{size}-{turn}"
        for name in ("ours", "kcat"):
            subprocess.run(
                [*OURS, "topic", "create", f"{topic}-{name}", "-b", bootstrap], check=True, stdout=subprocess.DEVNULL
            )
        commands = {
            ("produce", "ours"): [*OURS, "produce", f"{topic}-ours", "-b", bootstrap],
            ("produce", "kcat"): [*_kcat(), "-P", "-t", f"{topic}-kcat", "-b", bootstrap],
            ("consume", "ours"): [*OURS, "consume", f"{topic}-kcat", "-b", bootstrap],
            ("consume", "kcat"): [*_kcat(), "-C", "-q", "-e", "-t", f"{topic}-kcat", "-b", bootstrap],
        }
        for (action, name), command in commands.items():
            show(f"command line: {name} {action}, {size} B, round {turn + 1}")
            wall_s, processor_s = _run(command, path)
            times[action, name, "wall"].append(wall_s)
            times[action, name, "processor"].append(processor_s)
    rows = []
    for action in ("produce", "consume"):
        for clock in ("wall", "processor"):
            ours, theirs = (median(times[action, name, clock]) for name in ("ours", "kcat"))
            rows.append(
                Row(
                    name=f"{action}, {size} B, {clock}",
                    unit="1/s",
                    ours=1 / ours,
                    peer="kcat",
                    theirs=1 / theirs,
                    target=TARGET if clock == "wall" else None,
                )
            )
    return rows


def _kcat() -> list[str]:
    return [shutil.which("kcat") or str(UNPACKED_KCAT / "bin" / "kcat")]


def _run(command: list[str], path: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    environment = dict(os.environ)
    if UNPACKED_KCAT.exists():
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, (UNPACKED_KCAT / "lib").iterdir()))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with path.open("rb") as lines, Path(os.devnull).open("wb") as nowhere:
        subprocess.run(command, stdin=lines, stdout=nowhere, env=environment, check=True)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
