"""Snapshots: the same ledger as before, or none at all."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.collecting.snapshots import DIGEST_BYTES, Snapshot, SnapshotError, SnapshotFolder, snapshots_in
from pipeline.audit.events.report import LatencyCounts, SkippedOffsets
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import Witness
from pipeline.audit.ledger.ledger import Ledger
from pipeline.errors import ConfigurationError
from pipeline.records.tally import HOUR_MS, CodecCounts, Counts
from tests.support.audited_walk import Walk
from tests.support.audited_way import EAST, GRACE_MS, HOUR, Amounts, report
from tests.unit.audit.events.test_older import event
from tests.unit.audit.ledger.test_ledger import state

CLUSTERS = {"east", "hub"}


def shelf() -> FileShelf:
    return FileShelf(None, 1 << 30)


def snapshot(ledger: Ledger, position: int = 7) -> Snapshot:
    return Snapshot(ledger, {name: ReadingState(name, position=position) for name in CLUSTERS})


def walked(seed: int, steps: int = 80) -> Walk:
    walk = Walk(seed, is_shelved=True)
    for _ in range(steps):
        walk.step()
    return walk


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_ledger_goes_on_from_a_snapshot_as_if_nothing_had_happened(tmp_path: Path, seed: int) -> None:
    plain, walk = walked(seed), walked(seed)
    for _ in range(2):
        SnapshotFolder(tmp_path).save(snapshot(walk.ledger))
        known = SnapshotFolder(tmp_path).load(shelf(), CLUSTERS)
        assert known is not None
        assert {name: state.position for name, state in known.states.items()} == dict.fromkeys(CLUSTERS, 7)
        walk.ledger = known.ledger
        walk.judge = Judge(walk.ledger, grace_ms=GRACE_MS, pending_max_ms=100 * HOUR_MS)
        for _ in range(40):
            plain.step()
            walk.step()
        assert walk.judgement().hours() == plain.judgement().hours()
        assert walk.judgement().watermarks() == plain.judgement().watermarks()
    assert state(walk.ledger) == state(plain.ledger)


def test_what_is_rarely_known_is_in_a_snapshot(tmp_path: Path) -> None:
    ledger = Ledger(shelf=shelf())
    codecs = CodecCounts(10, (1, 0, 0, 0, 1))
    ledger.apply_older(event(Tier.BROKER, {0: Counts(2, 70, 1, 7, codecs=codecs)}, claims=((3, 9),)))
    skipped = [SkippedOffsets(0, 0, HOUR, 0, 9, 4, "lost")]
    latencies = [LatencyCounts(0, HOUR, "1", ((3, 2),))]
    ledger.apply(replace(report(Tier.LOAD, "hub", EAST, {HOUR: Amounts()}), skipped=skipped, latencies=latencies))
    known = snapshot(ledger)
    known.states["east"].told_of_loss(5, 6)
    known.states["east"].topic_id = uuid4()
    known.states["east"].clock.witness = Witness(name="clock", reason="is ahead", partition=EAST)
    SnapshotFolder(tmp_path).save(known)
    found = SnapshotFolder(tmp_path).load(shelf(), CLUSTERS)
    assert found is not None and found.states == known.states
    assert state(found.ledger) == state(ledger)
    assert flow_of(found.ledger) == flow_of(ledger)
    newer = event(Tier.BROKER, {0: Counts(3, 90, 2, 9), HOUR_MS: Counts(1, 1, 1, 1)}, revision=12)
    found.ledger.apply_older(newer)
    ledger.apply_older(newer)
    assert state(found.ledger) == state(ledger)
    assert [found.ledger.latencies.newest_window(each) for each in found.ledger.latencies.all_series()] == [[((3, 2),)]]


def flow_of(ledger: Ledger) -> list[object]:
    return [(key, dict(series.skipped), series.positions.progress.tolist()) for key, series in ledger.series.items()]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)


def of_another_program(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(DIGEST_BYTES) + data[DIGEST_BYTES:])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the snapshot": lambda folder: flipped(folder / "snapshot"),
    "a bit of old rows": lambda folder: flipped(next(folder.glob("rows-*"))),
    "its end is gone": lambda folder: os.truncate(folder / "snapshot", 1_000),
    "it is empty": lambda folder: os.truncate(folder / "snapshot", 0),
    "old rows are gone": lambda folder: next(folder.glob("rows-*")).unlink(),
    "others may write it": lambda folder: (folder / "snapshot").chmod(0o622),
    "another program": lambda folder: of_another_program(folder / "snapshot"),
}


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_snapshot_that_does_not_fit_is_thrown_away(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = SnapshotFolder(tmp_path)
    folder.save(snapshot(walked(1, 20).ledger))
    damage(tmp_path)
    assert SnapshotFolder(tmp_path).load(shelf(), CLUSTERS) is None
    assert not (tmp_path / "snapshot").exists()
    folder.save(snapshot(walked(1, 20).ledger))


def test_a_snapshot_of_other_clusters_is_thrown_away(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path).save(snapshot(Ledger()))
    assert SnapshotFolder(tmp_path).load(shelf(), {"east", "west"}) is None


def test_old_rows_that_find_no_room_mean_no_snapshot(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path).save(snapshot(walked(1, 20).ledger))
    assert SnapshotFolder(tmp_path).load(None, CLUSTERS) is None
    SnapshotFolder(tmp_path).save(snapshot(walked(1, 20).ledger))
    assert SnapshotFolder(tmp_path).load(FileShelf(None, 10), CLUSTERS) is None
    assert SnapshotFolder(tmp_path).load(shelf(), CLUSTERS) is not None  # a later start that has room


def test_a_snapshot_that_cannot_be_read_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, say, or a disk that is away."""
    SnapshotFolder(tmp_path).save(snapshot(walked(1, 20).ledger))

    def fstat(descriptor: int) -> os.stat_result:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        assert SnapshotFolder(tmp_path).load(shelf(), CLUSTERS) is None
    assert SnapshotFolder(tmp_path).load(shelf(), CLUSTERS) is not None


@pytest.mark.parametrize("step", ["stat", "unlink"])
def test_a_disk_that_refuses_everything_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It was mounted read-only after a failure, say. Everything is read again then."""
    SnapshotFolder(tmp_path).save(snapshot(walked(1, 20).ledger))
    of_another_program(tmp_path / "snapshot")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, refuse)
        assert SnapshotFolder(tmp_path).load(shelf(), CLUSTERS) is None
        SnapshotFolder(tmp_path).forget()


def test_rows_whose_file_is_gone_are_written_again(tmp_path: Path) -> None:
    """Somebody removed it, or a second service that has the same folder by mistake."""
    walk = walked(1, 20)
    folder = SnapshotFolder(tmp_path)
    folder.save(snapshot(walk.ledger))
    for path in tmp_path.glob("rows-*"):
        path.unlink()
    folder.save(snapshot(walk.ledger))
    known = SnapshotFolder(tmp_path).load(shelf(), CLUSTERS)
    assert known is not None
    assert state(known.ledger) == state(walk.ledger)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("hostile",)


def test_a_snapshot_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = SnapshotFolder(tmp_path)
    folder.save(Snapshot(Ledger(), {"east": Hostile()}))  # type: ignore[dict-item]
    assert pickle.loads((tmp_path / "snapshot").read_bytes()[2 * DIGEST_BYTES :]) and Path("hostile").is_dir()
    Path("hostile").rmdir()
    assert folder.load(shelf(), {"east"}) is None
    assert not Path("hostile").exists()


def test_a_disk_that_fails_at_any_write_leaves_the_snapshot_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = walked(2, 20), walked(2, 60)
    assert state(before.ledger) != state(after.ledger)
    failures = 0
    while True:
        folder = tmp_path / str(failures)
        folder.mkdir()
        before.ledger.shelve()
        after.ledger.shelve()
        SnapshotFolder(folder).save(snapshot(before.ledger, 1))
        files = {path.name for path in folder.iterdir()}
        syncs = iter(range(failures))

        def sync(descriptor: int, syncs: object = syncs) -> None:
            if next(syncs, None) is None:  # type: ignore[call-overload]
                raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            try:
                SnapshotFolder(folder).save(snapshot(after.ledger, 2))
                is_saved = True
            except SnapshotError:
                is_saved = False
        left = {path.name for path in folder.iterdir()}
        known = SnapshotFolder(folder).load(shelf(), CLUSTERS)
        assert known is not None
        position = known.states["east"].position
        assert state(known.ledger) == state((before if position == 1 else after).ledger)
        assert position == 2 if is_saved else position in (1, 2)
        assert position == 2 or left == files  # what was begun fills no disk
        failures += 1
        if is_saved:
            break
    assert failures > 3


def test_rows_that_no_snapshot_needs_are_removed_and_others_written_once(tmp_path: Path) -> None:
    ledger = walked(1, 20).ledger
    folder = SnapshotFolder(tmp_path)
    folder.save(snapshot(ledger))
    first = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("rows-*")}
    ledger.apply(report(Tier.PRODUCER, "east", EAST, {HOUR - 999 * HOUR_MS: Amounts()}, instance="p", revision=1))
    ledger.shelve()
    folder.save(snapshot(ledger))
    second = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("rows-*")}
    assert first.keys() & second.keys() and second.keys() - first.keys()
    assert all(second[name] == first[name] for name in first.keys() & second.keys())
    folder.save(snapshot(Ledger()))
    assert not list(tmp_path.glob("rows-*"))


def test_a_state_to_continue_knows_nothing_of_what_the_cluster_answered() -> None:
    known = ReadingState("east")
    known.lacks(0, 3)
    known.ends_at(10, 1_000)
    known.moves_to(10)
    other = known.to_continue()
    assert (other.position, other.open_gap) == (10, known.open_gap)
    assert (other.end, other.read_to_ms, other.is_complete) == (None, None, False)
    known.clock.floor_ms = 5
    assert known.to_continue().clock.floor_ms == 0
    known.has_applied()
    assert known.to_continue().clock == replace(known.clock)


def test_a_folder_is_created_but_not_those_above_it(tmp_path: Path) -> None:
    assert snapshots_in("") is None
    with pytest.raises(ConfigurationError, match="cannot be created"):
        snapshots_in(str(tmp_path / "none" / "folder"))
    assert snapshots_in(str(tmp_path / "new")) is not None
