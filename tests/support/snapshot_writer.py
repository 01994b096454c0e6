"""A process that applies reports of ever later times to a ledger, with a snapshot after each step, until it is killed.

python -m tests.support.snapshot_writer FOLDER TOPICS
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.audit.ledger import START_MS, reports
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.collecting.snapshots import Snapshot, SnapshotFolder
from pipeline.audit.ledger.ledger import Ledger
from pipeline.records.tally import HOUR_MS

CLUSTERS = ("east", "hub")
STEPS_OF_AN_HOUR = 3
SHELF_BYTES = 8 << 30


def new_shelf() -> FileShelf:
    """Return an empty shelf."""
    return FileShelf(None, SHELF_BYTES)


def apply_step(ledger: Ledger, topics: Sequence[str], number: int) -> None:
    """Apply the reports of a step: every partition has changed."""
    ledger.apply_all(reports(list(topics), START_MS + number * HOUR_MS // STEPS_OF_AN_HOUR))
    ledger.shelve()


def names(count: int) -> list[str]:
    """Return names of topics."""
    return [f"topic-{number:04}" for number in range(count)]


def write(path: Path, topics: Sequence[str]) -> None:
    """Go on from the snapshot in the folder, if there is one, and save one after each step. Prints the steps."""
    folder = SnapshotFolder(path)
    known = folder.load(new_shelf(), set(CLUSTERS))
    ledger = Ledger(shelf=new_shelf()) if known is None else known.ledger
    number = 0 if known is None else known.states["east"].position
    print("from", number, flush=True)
    while True:
        number += 1
        apply_step(ledger, topics, number)
        print("applied", number, flush=True)
        folder.save(Snapshot(ledger, {name: ReadingState(name, position=number) for name in CLUSTERS}))
        print("saved", number, flush=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]), names(int(sys.argv[2])))
