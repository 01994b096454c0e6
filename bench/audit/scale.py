"""The audit service at full size: decoding, ledger, shelf and judgements, in a process of its own.

Topics of 100 partitions at four tiers, windows of a minute. Every partition changes in every report, which is the most
that counters can send.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.audit import ledger as stream
from bench.report import Options, Row, Show, Target
from pipeline.audit.collecting.decoding import decode_any_version
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.collecting.snapshots import Snapshot, SnapshotFolder
from pipeline.audit.events.encoding import encode_count_report, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.ledger.ledger import Ledger
from pipeline.net.heap import free_large_blocks, keep_one_heap
from pipeline.records.tally import HOUR_MS

TOPICS = 1_000
EVENTS_AT_ONCE = 10
"""Events that a consumer gives at a time: about a megabyte."""
MAX_CPU_S = 0.5
MAX_MB = 300.0
MAX_SHELF_BYTES = 8 << 30
HOURS = 2
WINDOWS = 4
"""Windows of the newest hour that the ledger has: as many as it keeps."""
STEPS = 2
SNAPSHOT_PARTS = ("first snapshot", "next snapshot", "start from a snapshot")
PARTS = ("decoding", "applying", "judging")
HISTORY_HOURS = 720
MAX_FIRST_S, MAX_VIEW_S, MAX_REPORT_S = 5.0, 1.0, 2.0


def measure(options: Options, show: Show) -> list[Row]:
    """CPU time and memory at full size, and the time of the first judgement on a month."""
    rows = []
    topics = options.scaled(TOPICS, least=20)
    for interval_s in (10, 60):
        name = f"audit service, {topics:,} topics x 100 x 4, reports each {interval_s} s"
        if options.selects(name):
            show(name)
            found = _in_a_process(_run_service, topics, interval_s)
            bound = Target(bound=MAX_CPU_S, at_least=False, absolute=True)
            rows.append(Row(name=name, unit="CPU s/s", ours=found["cpu"], target=bound))
            rows += [Row(name=f"{name}: {part}", unit="CPU s/s", ours=found[part]) for part in PARTS]
            memory = Target(bound=MAX_MB, at_least=False, absolute=True)
            rows.append(Row(name=f"{name}: most memory", unit="MB", ours=found["mb"], target=memory))
            rows += [Row(name=f"{name}: {part}", unit="s", ours=found[part]) for part in SNAPSHOT_PARTS]
    name = f"first judgement, {topics:,} topics x {HISTORY_HOURS} hours"
    if options.selects(name):
        show(name)
        found = _in_a_process(_judge_month, topics, 0)
        targets = {"first judgement": MAX_FIRST_S, "judgement of other expectations": MAX_FIRST_S}
        for part, seconds in found.items():
            bound = Target(bound=targets.get(part, MAX_VIEW_S), at_least=False, absolute=True)
            rows.append(Row(name=f"{name}: {part}", unit="CPU s", ours=seconds, target=bound))
    return rows


def _in_a_process(run: Callable[[Connection, int, int], None], topics: int, interval_s: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(theirs, topics, interval_s), daemon=True)
    process.start()
    theirs.close()
    try:
        if run is _run_service:
            _feed(ours, topics, interval_s)
        found: dict[str, float] = ours.recv()
    finally:
        process.join(60)
        process.kill()
    return found


def _feed(connection: Connection, topics: int, interval_s: int) -> None:
    """Send the events of the ends of some hours, of windows, and of intervals whose CPU time counts."""
    names = _names(topics)
    for hour in range(HOURS):
        _send(connection, names, stream.START_MS + (hour + 1) * HOUR_MS - interval_s * 1000, is_measured=False)
    start_ms = stream.START_MS + HOURS * HOUR_MS
    for _ in range(WINDOWS - 1):
        _send(connection, names, start_ms, is_measured=False)
        start_ms += 60_000
    for step in range(STEPS + 1):
        _send(connection, names, start_ms + step * interval_s * 1000, is_measured=step > 0)
    connection.send(None)


def _send(connection: Connection, names: list[str], now_ms: int, *, is_measured: bool) -> None:
    events: list[bytes] = []
    for report in stream.reports(names, now_ms):
        events += map(encode_count_report, portions(report))
        if len(events) >= EVENTS_AT_ONCE:
            connection.send((events, now_ms, False, is_measured))
            events = []
    connection.send((events, now_ms, True, is_measured))


def _names(topics: int) -> list[str]:
    return [f"topic-{number:04}" for number in range(topics)]


def _run_service(connection: Connection, topics: int, interval_s: int) -> None:
    """Decode, apply and judge what comes, as the service does; send the figures."""
    keep_one_heap()
    free_large_blocks()
    ledger = Ledger(shelf=FileShelf(None, MAX_SHELF_BYTES))
    judge = Judge(ledger, grace_ms=60_000, pending_max_ms=HOUR_MS)
    expected = stream.expected(_names(topics))
    spent = dict.fromkeys(PARTS, 0.0)
    steps = 0
    while (message := connection.recv()) is not None:
        events, now_ms, is_last, is_measured = message
        began = time.process_time()
        reports = [each for each in map(decode_any_version, events) if isinstance(each, CountReport)]
        decoded = time.process_time()
        ledger.apply_all(reports)
        ledger.shelve()
        applied = time.process_time()
        if is_last:
            judge.judge(replace(expected, read_to_ms=dict.fromkeys(("east", "hub"), now_ms)), now_ms)
            ledger.shelve()
        if is_measured:
            spent["decoding"] += decoded - began
            spent["applying"] += applied - decoded
            spent["judging"] += time.process_time() - applied
            steps += is_last
    found: dict[str, float] = {part: seconds / (steps * interval_s) for part, seconds in spent.items()}
    found |= {"cpu": sum(found.values()), "mb": greatest_mb()}
    connection.send(found | _snapshot_times(ledger))


def _snapshot_times(ledger: Ledger) -> dict[str, float]:
    """Return the time of the first snapshot, of the next one and of a start from it."""
    with tempfile.TemporaryDirectory() as path:
        folder, snapshot = SnapshotFolder(Path(path)), Snapshot(ledger, {"east": ReadingState("east")})
        times = [time.monotonic()]
        for _ in range(2):
            folder.save(snapshot)
            times.append(time.monotonic())
        if SnapshotFolder(Path(path)).load(FileShelf(None, MAX_SHELF_BYTES), {"east"}) is None:
            raise ValueError("the snapshot was not used")
        times.append(time.monotonic())
    return {part: after - before for part, before, after in zip(SNAPSHOT_PARTS, times, times[1:], strict=False)}


def greatest_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def _judge_month(connection: Connection, topics: int, _: int) -> None:
    """Judge a month of topics of one partition; send the times."""
    ledger = Ledger()
    judge = Judge(ledger, grace_ms=60_000, pending_max_ms=HOUR_MS)
    names = _names(topics)
    expected: Any = stream.expected(names, partitions=1)
    for hour in range(HISTORY_HOURS):
        now_ms = stream.START_MS + (hour + 1) * HOUR_MS - stream.INTERVAL_MS
        for report in stream.reports(names, now_ms, partitions=1):
            ledger.apply(report)
    now_ms = stream.START_MS + HISTORY_HOURS * HOUR_MS + 600_000
    for report in stream.reports(names, now_ms, partitions=1):
        ledger.apply(replace(report, rows=report.rows[:0]))
    expected = replace(expected, read_to_ms=dict.fromkeys(("east", "hub"), now_ms))
    found = {}
    for part, expectations in (
        ("first judgement", expected),
        ("judgement without a change", expected),
        ("judgement of other expectations", replace(expected, compacted=frozenset([("east", names[0])]))),
    ):
        began = time.process_time()
        judge.judge(expectations, now_ms)
        found[part] = time.process_time() - began
    connection.send(found)
