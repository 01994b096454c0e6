"""Checkpoints: equal to the manifests before them, made up for if they are damaged, and whole after any crash."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.hadoop.commit import checkpoints
from pipeline.hadoop.commit.checkpoints import (
    checkpoint_if_due,
    decode_checkpoint,
    encode_checkpoint,
    read_chain,
    read_state,
    write_checkpoint,
)
from pipeline.hadoop.commit.layout import TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import ManifestError
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.records.tally import Counts
from tests.support.faulty_filesystem import Died, FaultyFileSystem

COMMITS = 7


@pytest.fixture
def layout(tmp_path: Path, make_manifest: Callable[..., Any]) -> TopicLayout:
    """A table with some commits."""
    layout = topic_layout(str(tmp_path), "clicks")
    for number in range(COMMITS):
        head = read_head(LocalFileSystem(), layout)
        commit(LocalFileSystem(), layout, make_manifest(head, run_id=f"r{number}"), head)
    return layout


@pytest.fixture
def files() -> LocalFileSystem:
    return LocalFileSystem()


class CountingFileSystem(LocalFileSystem):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        return super().read(path, start, length)


def test_a_checkpoint_says_what_the_manifests_say(files: LocalFileSystem, layout: TopicLayout) -> None:
    state = read_state(files, layout)
    assert decode_checkpoint(encode_checkpoint(state), "c") == state
    assert (state.sequence, len(state.files), state.offsets) == (COMMITS, COMMITS, {0: 10 * COMMITS})


def test_manifests_before_a_checkpoint_are_not_read_and_may_be_gone(
    files: LocalFileSystem, layout: TopicLayout
) -> None:
    whole = read_state(files, layout)
    chain = read_chain(files, layout)
    write_checkpoint(files, layout, 5, "r5")
    counting = CountingFileSystem()
    assert read_state(counting, layout) == whole
    assert counting.reads == 1 + 2
    for sequence in range(1, 6):
        Path(layout.manifest(sequence)).unlink()
    assert read_state(files, layout) == whole
    assert read_chain(files, layout) == chain[5:]
    with pytest.raises(ManifestError, match="expired"):
        read_state(files, layout, up_to=4)
    Path(layout.manifest(6)).unlink()
    with pytest.raises(ManifestError, match="missing"):
        read_state(files, layout)


def test_a_state_of_the_past_needs_a_checkpoint_before_it(files: LocalFileSystem, layout: TopicLayout) -> None:
    write_checkpoint(files, layout, 5, "r5")
    assert [read_state(files, layout, up_to=number).sequence for number in range(COMMITS + 1)] == [*range(COMMITS + 1)]


@pytest.mark.parametrize("damage", [b"", b"PAR1", None])
def test_a_damaged_checkpoint_is_made_up_for(files: LocalFileSystem, layout: TopicLayout, damage: Any) -> None:
    whole = read_state(files, layout)
    write_checkpoint(files, layout, 3, "r3")
    write_checkpoint(files, layout, 5, "r5")
    path = Path(layout.checkpoint(5))
    content = bytearray(path.read_bytes())
    content[60] ^= 0x40  # in the first page
    path.write_bytes(content if damage is None else damage)
    counting = CountingFileSystem()
    assert read_state(counting, layout) == whole
    assert counting.reads == 2 + 4


def test_a_checkpoint_of_another_chain_is_noticed(files: LocalFileSystem, layout: TopicLayout) -> None:
    other = read_state(files, layout, up_to=5)
    assert other.last is not None
    foreign = replace(other, last=replace(other.last, created_ms=7))
    Path(layout.checkpoints).mkdir()
    Path(layout.checkpoint(5)).write_bytes(encode_checkpoint(foreign))
    with pytest.raises(ManifestError, match="checksum"):
        read_state(files, layout)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
def test_dying_at_any_step_leaves_a_table_that_can_be_read(
    files: LocalFileSystem, layout: TopicLayout, step: int, after: bool
) -> None:
    whole = read_state(files, layout)
    with pytest.raises(Died):
        write_checkpoint(FaultyFileSystem(files, fail_at=step, after=after, die=True), layout, COMMITS, "dead")
    assert read_state(files, layout) == whole
    write_checkpoint(files, layout, COMMITS, "next")
    write_checkpoint(files, layout, COMMITS, "again")
    assert read_state(files, layout) == whole


def test_a_checkpoint_is_due_at_intervals_and_its_failure_is_no_failure_of_the_load(
    files: LocalFileSystem, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL", 3)
    for sequence in range(1, COMMITS + 1):
        checkpoint_if_due(files, layout, sequence, "r")
    names = sorted(path.name for path in Path(layout.checkpoints).iterdir())
    assert [int(name.removesuffix(".parquet")) for name in names] == [3, 6]
    Path(layout.checkpoint(6)).unlink()
    checkpoint_if_due(FaultyFileSystem(files, fail_at=1), layout, 6, "r")
    assert not Path(layout.checkpoint(6)).exists()


def test_counts_of_old_windows_leave_with_a_checkpoint(files: LocalFileSystem, layout: TopicLayout) -> None:
    state = read_state(files, layout)
    counts = {(0, 0): Counts(1, 2, 3, 4), (0, COUNTS_KEPT_MS): Counts(1, 2, 3, 2**64 - 1)}
    assert decode_checkpoint(encode_checkpoint(replace(state, counts=counts)), "c").counts == counts
    counts[1, COUNTS_KEPT_MS + 1] = Counts(5, 6, 7, 8)
    kept = decode_checkpoint(encode_checkpoint(replace(state, counts=counts)), "c").counts
    assert set(kept) == {(0, COUNTS_KEPT_MS), (1, COUNTS_KEPT_MS + 1)}
