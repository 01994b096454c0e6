"""The model of a topic whose oldest records go, and the rules of log start offsets, on made-up logs."""

import pytest

from pipeline.model import Offset
from pipeline.testing.simulation.client_context import ClientContext
from pipeline.testing.simulation.expiry import RETENTION_BYTES, Expiry, Kept
from pipeline.testing.simulation.start_rules import StartRules

VALUES = {Offset(offset): f"{offset}".encode() for offset in range(10)}


def expiry(*, asked: int = 0, deleted: int = 0) -> Expiry:
    context: ClientContext = ClientContext.__new__(ClientContext)
    return Expiry(
        context,
        sent=dict.fromkeys([*VALUES.values(), b"unclear"]),
        acknowledged=dict(VALUES),
        asked=Offset(asked),
        deleted=Offset(deleted),
    )


def kept(start: int, *values: bytes, size_bytes: int = 0) -> Kept:
    records = {Offset(start + number): value for number, value in enumerate(values)}
    return Kept(start=Offset(start), records=records, size_bytes=size_bytes)


ALL = tuple(VALUES.values())


@pytest.mark.parametrize(
    ("model", "log"),
    [
        (expiry(), kept(0, *ALL)),
        (expiry(), kept(0, *ALL, b"unclear")),
        (expiry(asked=4), kept(4, *ALL[4:])),
        (expiry(asked=4, deleted=4), kept(4, *ALL[4:])),
        (expiry(), kept(6, *ALL[6:], size_bytes=RETENTION_BYTES)),
    ],
)
def test_logs_as_they_may_be(model: Expiry, log: Kept) -> None:
    assert list(model.check({"broker-1": log}, is_moved=False)) == []


@pytest.mark.parametrize(
    ("model", "log", "problem"),
    [
        (expiry(asked=4), kept(4, *ALL[4:9]), "lost"),
        (expiry(asked=4), kept(4, *ALL[4:], b"other"), "nobody sent"),
        (expiry(asked=4), kept(4, *ALL[4:], ALL[9]), "twice"),
        (expiry(asked=4), kept(5, *ALL[5:], size_bytes=100), "deletions went up to 4"),
        (expiry(asked=4, deleted=4), kept(0, *ALL), "deleted up to 4"),
    ],
)
def test_logs_as_they_must_not_be(model: Expiry, log: Kept, problem: str) -> None:
    assert any(problem in found for found in model.check({"broker-1": log}, is_moved=False))


def test_a_gap_behind_the_log_start_offset_is_found() -> None:
    log = Kept(start=Offset(3), records={Offset(4): ALL[4], Offset(5): ALL[5]}, size_bytes=0)
    assert any("begins at 3" in found for found in expiry(asked=9).check({"broker-1": log}, is_moved=False))


def test_a_log_start_offset_goes_on_to_what_is_committed_and_never_back() -> None:
    rules = StartRules()
    rules.moved("orders-0", Offset(1), Offset(4), Offset(4))
    rules.moved("orders-0", Offset(4), Offset(5), None)
    assert rules.problems == []
    rules.moved("orders-0", Offset(5), Offset(4), Offset(9))
    rules.moved("orders-0", Offset(4), Offset(9), Offset(8))
    assert len(rules.problems) == 2
