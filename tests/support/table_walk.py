"""Random walks over one table on file://, without brokers and Spark.

Runs of all kinds (loads, also of an earlier version, compaction, retention, clean-up, replay, release) fail or die at
any operation of the file system, or sleep there and wake up later. The file system's clock jumps by days, checkpoints
are damaged, and older copies of the table come back. `TableWalk.check` holds after each step.
"""

import os
import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.hadoop.commit import checkpoints
from pipeline.hadoop.commit.checkpoints import (
    manifests_of,
    reachable_files,
    read_checkpoint,
    read_history,
    read_manifest,
    read_state,
)
from pipeline.hadoop.commit.layout import checkpoint_sequences, topic_layout
from pipeline.hadoop.commit.manifest import ManifestError, Operation
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError
from pipeline.hadoop.commit.table_state import TableState, with_commits
from pipeline.hadoop.files.doors import FileSink
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import release as release_module
from pipeline.hadoop.upkeep import cleaning_plan, replay
from pipeline.hadoop.upkeep.cleaning import clean_table
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.config import DAY_MS, UpkeepConfig
from pipeline.hadoop.upkeep.retention import expire_hours
from pipeline.hadoop.upkeep.table import Table
from pipeline.hadoop.upkeep.verification import verify_files
from pipeline.records.tally import HOUR_MS
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.walked_loads import BEGIN_MS, TOPIC, Source, load_old, load_once, rewriter

ORPHAN_AGE_MS = 3_600_000
KEPT = 2
DEADLINE_S = 60


@dataclass
class FileClock:
    """Time of the file system."""

    now_ms: int = BEGIN_MS + DAY_MS


class ClockedFileSystem(LocalFileSystem):
    """Files get the time of a clock that tests set."""

    def __init__(self, clock: FileClock) -> None:
        super().__init__()
        self.clock = clock
        self.sinks: list[FileSink] = []

    def create(self, path: str) -> FileSink:
        sink = super().create(path)
        os.utime(path, (self.clock.now_ms / 1000, self.clock.now_ms / 1000))
        self.sinks.append(_ClockedSink(sink, path, self.clock))
        return self.sinks[-1]


@dataclass
class _ClockedSink:
    inner: FileSink
    path: str
    clock: FileClock

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.inner.write(data)

    def close(self) -> None:
        self.inner.close()
        with suppress(FileNotFoundError):
            os.utime(self.path, (self.clock.now_ms / 1000, self.clock.now_ms / 1000))

    def __enter__(self) -> "_ClockedSink":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.inner.__exit__(kind, error, trace)
            with suppress(FileNotFoundError):
                os.utime(self.path, (self.clock.now_ms / 1000, self.clock.now_ms / 1000))


@dataclass
class SteppedFileSystem(FaultyFileSystem):
    """Sleeps before operation number `sleep_at` until it is woken up."""

    sleep_at: int = 0
    events: "Queue[str]" = field(default_factory=Queue)
    wake: threading.Event = field(default_factory=threading.Event)

    def _enter(self, name: str, path: str) -> None:
        if len(self.operations) + 1 == self.sleep_at:
            self.events.put("sleeps")
            assert self.wake.wait(DEADLINE_S)
            self.wake.clear()
        super()._enter(name, path)


class Run:
    """A run in a thread of its own; it and the walk never run at the same time."""

    def __init__(self, kind: str, run_id: str, files: SteppedFileSystem, work: Callable[[], Any], epoch: int) -> None:
        self.kind, self.run_id, self.files, self.epoch = kind, run_id, files, epoch
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_asleep = False
        self.is_of_copy = False
        """True if an older copy was made while it slept: some of its files may be in it, and others not."""
        self._thread = threading.Thread(target=self._main, args=(work,), daemon=True)

    def _main(self, work: Callable[[], Any]) -> None:
        try:
            self.result = work()
        except BaseException as error:
            self.error = error
        assert isinstance(self.files.inner, ClockedFileSystem)
        for sink in self.files.inner.sinks:  # an ended process keeps no file open
            sink.__exit__(Died, None, None)
        self.files.events.put("ended")

    def go(self) -> None:
        """Start it or wake it up, and wait until it sleeps or has ended."""
        if self.is_asleep:
            self.files.wake.set()
        else:
            self._thread.start()
        self.is_asleep = self.files.events.get(timeout=DEADLINE_S) == "sleeps"
        if not self.is_asleep:
            self._thread.join(DEADLINE_S)


@dataclass
class Known:
    """What the walk knows of the table; an older copy brings an older one back."""

    sequence: int = 0
    seen: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Partition and offsets of files, by path."""
    expired: dict[int, set[int]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def copied(self) -> "Known":
        expired = {partition: set(offsets) for partition, offsets in self.expired.items()}
        return Known(self.sequence, dict(self.seen), expired, dict(self.runs))


class TableWalk:
    """One walk. `directory` is empty at first."""

    def __init__(self, directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.root = str(directory / "lake")
        self.backup = directory / "backup"
        self.layout = topic_layout(self.root, TOPIC)
        self.clock = FileClock()
        self.plain = ClockedFileSystem(self.clock)
        self.source = Source(self.random)
        self.known = Known()
        self.saved: Known | None = None
        self.epoch = 0
        """Number of older copies that came back."""
        self.sleeping: list[Run] = []
        self.number = 0
        self.done: Counter[str] = Counter()
        self.trace: list[str] = []
        self._local = threading.local()
        monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL", 4)
        monkeypatch.setattr(cleaning_plan, "KEPT_COMMITS", KEPT)
        monkeypatch.setattr(release_module, "RELEASE_AGE_MS", ORPHAN_AGE_MS)
        monkeypatch.setattr(release_module, "open_filesystem", lambda url: (self._local.files, url))
        monkeypatch.setattr(replay, "rewrite", rewriter(self.source))
        self.config = UpkeepConfig().model_copy(update={"orphan_age_ms": ORPHAN_AGE_MS, "retention_ms": 40 * DAY_MS})

    def walk(self, steps: int) -> None:
        """Make steps, and check the table after each; in the end all leftovers go."""
        kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "load": (10, lambda: self._begin("load")),
            "old load": (4, lambda: self._begin("old load")),
            "compact": (4, lambda: self._begin("compact")),
            "expire": (1, lambda: self._begin("expire")),
            "clean": (5, lambda: self._begin("clean")),
            "replay": (2, lambda: self._begin("replay")),
            "release": (3, lambda: self._begin("release")),
            "wake": (8, self._wake),
            "clock": (4, self._move_clock),
            "checkpoint": (2, self._damage_checkpoint),
            "copy": (1, self._copy),
            "restore": (1, self._restore),
        }
        names, weights = list(kinds), [weight for weight, _ in kinds.values()]
        for _ in range(steps):
            name = self.random.choices(names, weights)[0]
            self.trace.append(name)
            kinds[name][1]()
            self.check()
        self._finish()

    def _begin(self, kind: str) -> None:
        self.source.grow()
        self.number += 1
        run_id = f"run{self.number}"
        files = SteppedFileSystem(ClockedFileSystem(self.clock))
        fault = self.random.choice(["", "", "die", "error", "outage", "sleep", "sleep"])
        at, files.after = self.random.randint(1, 45), self.random.random() < 0.5
        if fault == "sleep":
            files.sleep_at = at
        elif fault:
            files.fail_at, files.die, files.outage = at, fault == "die", fault == "outage"
        self.trace[-1] += f" {run_id} {fault} {at} {'after' if files.after else 'before'}"
        run = Run(kind, run_id, files, self._work(kind, run_id, files), self.epoch)
        self._advance(run)

    def _work(self, kind: str, run_id: str, files: SteppedFileSystem) -> Callable[[], Any]:
        table = Table(topic=TOPIC, files=files, layout=self.layout)
        hour = self.random.randrange(4)
        share = self.random.random()

        def release() -> Any:
            self._local.files = files
            return release_module.release(
                self.root, TOPIC, self.source.lookup_later, clock=lambda: self.clock.now_ms, run_id=run_id
            )

        def clock() -> int:
            return self.clock.now_ms

        work: dict[str, Callable[[], Any]] = {
            "load": lambda: load_once(self.root, files, self.source, run_id, share, clock, ORPHAN_AGE_MS),
            "old load": lambda: load_old(self.root, files, self.source, run_id, clock),
            "compact": lambda: compact_table(table, self.config, clock=clock),
            "expire": lambda: expire_hours(table, self.config, clock=clock),
            "clean": lambda: self._clean(table),
            "replay": lambda: replay.replay_hour(
                table, self.source.config(self.root, ORPHAN_AGE_MS), BEGIN_MS + hour * HOUR_MS, clock=clock
            ),
            "release": release,
        }
        return work[kind]

    def _clean(self, table: Table) -> Any:
        return clean_table(table, self.config, dry_run=False)

    def _oldest_readable(self) -> int:
        """The commit behind which all can be read: manifests before it are of no use, like one of a fenced run."""
        try:
            return read_history(self.plain, self.layout)[0].sequence
        except ManifestError:
            return sys.maxsize

    def _advance(self, run: Run) -> None:
        times = {info.path: info.modified_ms for info in self.plain.list_files(self.layout.commits)}
        began_ms, oldest = self.clock.now_ms, self._oldest_readable()
        run.go()
        if run.is_asleep:
            if run not in self.sleeping:
                self.sleeping.append(run)
            return
        if run in self.sleeping:
            self.sleeping.remove(run)
        outcome = "ok" if run.error is None else type(run.error).__name__
        self.trace[-1] += f" -> {run.kind} {run.run_id} {outcome}"
        self.done[f"{run.kind} {outcome}"] += 1
        if run.error is not None and not isinstance(run.error, PipelineError | Died):
            raise run.error
        if run.kind == "clean" and not run.files.sleep_at:
            left = {info.path for info in self.plain.list_files(self.layout.commits)}
            for path, modified_ms in times.items():
                name = path.rsplit("/", 1)[-1]
                if path not in left and name.endswith(".json") and int(name[:20]) > oldest:
                    assert began_ms - modified_ms > self.config.manifest_retention_ms, f"{path} expired too early"
        self._check_outcome(run)

    def _check_outcome(self, run: Run) -> None:
        """An error other than an unknown outcome says that nothing was committed; a result says what was."""
        if run.epoch != self.epoch:
            return
        found = {}
        for number in manifests_of(self.plain, self.layout):
            with suppress(PipelineError):
                found[read_manifest(self.plain, self.layout, number)[0].run_id] = number
        if isinstance(run.error, PipelineError) and not isinstance(run.error, CommitOutcomeUnknownError):
            assert run.run_id not in found, f"{run.kind} raised {run.error!r}, and has committed {found[run.run_id]}"
        manifest = getattr(run.result, "manifest", None)
        if run.error is None and manifest is not None and not run.files.sleep_at:
            assert found.get(manifest.run_id) == manifest.sequence

    def _wake(self) -> None:
        if not self.sleeping:
            return
        run = self.random.choice(self.sleeping)
        at = len(run.files.operations) + self.random.randint(1, 20)
        fate = self.random.choice(["", "", "die", "error", "sleep"])
        run.files.sleep_at = -1
        if (run.is_of_copy and run.epoch != self.epoch) or (run.kind == "old load" and run.epoch != self.epoch):
            fate, at = "die", len(run.files.operations) + 1
            run.files.after = False
        elif run.epoch != self.epoch and fate:
            fate = ""
        if fate in {"die", "error"}:
            run.files.fail_at, run.files.die = at, fate == "die"
        elif fate == "sleep":
            run.files.sleep_at = at + 1
        self.trace[-1] += f" {run.kind} {run.run_id} {fate} {at}"
        self._advance(run)

    def _move_clock(self) -> None:
        step_ms = self.random.choice([60_000, 2 * HOUR_MS, 10 * DAY_MS, 10 * DAY_MS, -3 * DAY_MS, -12 * DAY_MS])
        self.clock.now_ms = max(BEGIN_MS, self.clock.now_ms + step_ms)
        self.trace[-1] += f" {step_ms}"

    def _damage_checkpoint(self) -> None:
        """Damage or delete a checkpoint that others, or all manifests, make up for."""
        present = checkpoint_sequences([info.path for info in self.plain.list_files(self.layout.checkpoints)])
        whole = []
        for number in present:
            with suppress(PipelineError):
                read_checkpoint(self.plain, self.layout, number)
                whole.append(number)
        manifests = manifests_of(self.plain, self.layout)
        last = self._first_of_run(manifests)
        chosen = self.random.choice(whole) if whole else None
        if chosen is None or not (last == 1 or any(number != chosen and number >= last - 1 for number in whole)):
            return
        path = Path(self.layout.checkpoint(chosen))
        data = path.read_bytes()
        self.trace[-1] += f" {chosen}"
        if self.random.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(data[: self.random.randrange(len(data))])

    def _first_of_run(self, manifests: list[int]) -> int:
        first = manifests[-1] if manifests else 1
        while first - 1 in manifests:
            first -= 1
        return first

    def _copy(self) -> None:
        if Path(self.layout.topic_root).exists():
            shutil.rmtree(self.backup, ignore_errors=True)
            shutil.copytree(self.layout.topic_root, self.backup)
            self.saved = self.known.copied()
            for run in self.sleeping:
                run.is_of_copy = True

    def _restore(self) -> None:
        """Bring the older copy back, or nothing."""
        if self.random.random() < 0.5:
            return
        self.epoch += 1
        shutil.rmtree(self.layout.topic_root, ignore_errors=True)
        if self.saved is None or self.random.random() < 0.2:
            self.trace[-1] += " nothing"
            self.known = Known()
            return
        shutil.copytree(self.backup, self.layout.topic_root)
        self.known = self.saved.copied()

    def check(self) -> None:
        """Check the table: see the module."""
        try:
            self._check()
        except BaseException as error:
            error.add_note("\n".join(self.trace))
            raise

    def _check(self) -> None:
        state = read_state(self.plain, self.layout)
        base, following = read_history(self.plain, self.layout)
        manifests = list(following)
        pairs = [read_manifest(self.plain, self.layout, manifest.sequence) for manifest in manifests]
        folded = with_commits(base, pairs)
        assert (folded.sequence, folded.files) == (state.sequence, state.files)
        table = Table(topic=TOPIC, files=self.plain, layout=self.layout)
        for path in sorted(reachable_files(base, [m for m in manifests if m.sequence > base.sequence])):
            assert Path(self.layout.absolute(path)).exists(), f"{path} is gone, and a commit that is kept lists it"
        for file in state.files.values():
            table.read(file)
            if file.path not in self.known.seen:
                self.known.seen[file.path] = self.source.offsets_of(table.read(file), file)
        for number in range(self.known.sequence + 1, state.sequence + 1):
            manifest, _ = read_manifest(self.plain, self.layout, number)
            assert manifest.run_id not in self.known.runs
            self.known.runs[manifest.run_id] = number
            for file in manifest.files:
                if file.path not in self.known.seen and Path(self.layout.absolute(file.path)).exists():
                    self.known.seen[file.path] = self.source.offsets_of(table.read(file), file)
            if manifest.operation is Operation.EXPIRE:
                for path in manifest.removed:
                    partition, offsets = self.known.seen[path]
                    self.known.expired.setdefault(partition, set()).update(offsets)
        assert state.sequence >= self.known.sequence
        self.known.sequence = state.sequence
        self._check_records(state)
        assert verify_files(table, state, lambda size: None) == []

    def _check_records(self, state: TableState) -> None:
        """Each offset that was loaded is once in a file, or expired; counts are those of the records in data files."""
        held: dict[int, list[int]] = {partition: sorted(gone) for partition, gone in self.known.expired.items()}
        counted: Counter[tuple[int, int]] = Counter()
        for partition, offsets in held.items():
            counted.update(self.source.windows(partition, offsets))
        for file in state.files.values():
            partition, offsets_of = self.known.seen[file.path]
            held.setdefault(partition, []).extend(offsets_of)
            if not file.quarantined:
                counted.update(self.source.windows(partition, offsets_of))
        for partition, end in state.offsets.items():
            assert sorted(held.get(partition, [])) == list(range(end)), f"partition {partition} up to {end}"
        assert {key: count.records for key, count in state.counts.items() if count.records} == dict(counted)
        for counts in state.counts.values():
            assert counts.batches <= counts.records

    def _finish(self) -> None:
        """Wake up or kill all runs, commit some loads, and clean up: nothing is left over."""
        self.trace.append("finish")
        for run in list(self.sleeping):
            run.files.sleep_at = -1
            if run.epoch != self.epoch and (run.is_of_copy or run.kind == "old load"):
                run.files.fail_at, run.files.die, run.files.after = len(run.files.operations) + 1, True, False
            self._advance(run)
            self.check()
        for _ in range(KEPT + 2):
            self.clock.now_ms += 20 * DAY_MS
            self.source.grow(1)
            self.number += 1
            files = SteppedFileSystem(ClockedFileSystem(self.clock))
            run = Run("load", f"last{self.number}", files, self._work("load", f"last{self.number}", files), self.epoch)
            run.go()
            assert run.error is None, run.error
            self.check()
        self.clock.now_ms += 100 * DAY_MS
        table = Table(topic=TOPIC, files=self.plain, layout=self.layout)
        clean_table(table, self.config, dry_run=False)
        self.check()
        assert clean_table(table, self.config, dry_run=False).deletions == []
        base, manifests = read_history(self.plain, self.layout)
        names = {
            self.layout.relative(info.path) for info in self.plain.list_files(self.layout.topic_root, recursive=True)
        }
        data = {name for name in names if name.startswith(("hourly/", "hive/", "quarantine/"))}
        assert data == reachable_files(base, manifests), "files are left over"
        left = sorted(name for name in names if name.startswith("_runs/") or "/." in name)
        assert not left, left
