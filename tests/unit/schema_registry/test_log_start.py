"""A compacted log whose oldest records were deleted may lack schemas: registries say so."""

from collections.abc import Callable
from typing import Any

import trio
import trio.testing
from structlog.testing import capture_logs

from pipeline.schema_registry.state.events import SchemaWritten, encode_event
from pipeline.schema_registry.writing.log_start import LOOK_INTERVAL_S, LogStart
from pipeline.testing.memory_journal import MemoryJournal

DEADLINE_S = 60


def filled(journal: MemoryJournal) -> None:
    for number in (1, 2, 2):
        text = f'{{"type":"fixed","name":"F{number}","size":1}}'
        journal.put(*encode_event(SchemaWritten(subject="s", version=number, id=number, text=text)))


async def test_a_registry_over_a_log_whose_oldest_records_were_deleted_warns(
    journal: MemoryJournal, open_registry: Callable[..., Any]
) -> None:
    filled(journal)
    journal.delete_before(1)
    with capture_logs() as logged:
        async with open_registry(journal) as http:
            with trio.fail_after(DEADLINE_S):
                while "warnings" not in (health := (await http.get("/healthz")).json()):
                    await trio.sleep(0.01)
            (warning,) = health["warnings"]
            assert "before offset 1 were deleted" in warning
            assert "may be missing" in warning
            assert (await http.get("/schemas/ids/1")).status_code == 404
    assert "registry_records_deleted" in [entry["event"] for entry in logged]


async def test_a_registry_that_runs_has_what_is_deleted_and_says_so(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    filled(journal)
    journal.compact()  # which deletes no record without another one of its key
    start = LogStart(journal)
    nursery.start_soon(start.run)
    await trio.sleep(LOOK_INTERVAL_S * 3)
    assert start.warning() is None
    journal.delete_before(1)
    await trio.sleep(LOOK_INTERVAL_S * 2)
    assert "has them in memory" in (start.warning() or "")
    journal.reachable = False
    await trio.sleep(LOOK_INTERVAL_S * 2)
    assert "has them in memory" in (start.warning() or "")
