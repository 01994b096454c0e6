"""The model of a compacted topic, on made-up logs."""

import pytest

from pipeline.model import Offset
from pipeline.testing.simulation.accounts import KEYS, Accounts, Entry
from pipeline.testing.simulation.client_context import ClientContext

KEY, OTHER = KEYS[:2]


def entry(offset: int, key: bytes, value: bytes | None) -> Entry:
    return Entry(Offset(offset), key, value)


def accounts_of(*acknowledged: Entry, unclear: tuple[tuple[bytes, bytes | None], ...] = ()) -> Accounts:
    context: ClientContext = ClientContext.__new__(ClientContext)
    accounts = Accounts(context)
    for number, (key, value) in enumerate(unclear, start=1000):
        accounts.accounts[key].sent[value] = None
        accounts.accounts[key].unclear[number] = value
    for number, record in enumerate(acknowledged):
        account = accounts.accounts[record.key]
        account.sent[record.value], account.unclear[number] = None, record.value
        accounts.acknowledge(record, number)
    return accounts


FIRST, LAST, DELETED = entry(0, KEY, b"1"), entry(3, KEY, b"2"), entry(3, KEY, None)


@pytest.mark.parametrize(
    ("accounts", "log", "clean"),
    [
        (accounts_of(FIRST, LAST), [FIRST, LAST], 0),
        (accounts_of(FIRST, LAST), [LAST], 9),
        (accounts_of(FIRST, DELETED), [], 9),
        (accounts_of(FIRST, LAST, unclear=((KEY, None),)), [], 9),
        (accounts_of(FIRST, unclear=((KEY, b"9"),)), [entry(7, KEY, b"9")], 9),
    ],
)
def test_logs_as_they_may_be(accounts: Accounts, log: list[Entry], clean: int) -> None:
    assert list(accounts.check("broker-1", log, Offset(clean))) == []


@pytest.mark.parametrize(
    ("accounts", "log", "clean"),
    [
        (accounts_of(FIRST, LAST), [], 0),
        (accounts_of(FIRST, LAST), [FIRST], 0),
        (accounts_of(FIRST, DELETED), [FIRST], 0),
        (accounts_of(FIRST, LAST), [FIRST, LAST], 9),
        (accounts_of(FIRST, LAST), [LAST, FIRST], 0),
        (accounts_of(FIRST, LAST), [entry(1, KEY, b"7"), LAST], 0),
        (accounts_of(FIRST, LAST), [entry(0, KEY, b"2"), LAST], 0),
        (accounts_of(FIRST, LAST), [LAST, entry(5, KEY, b"1")], 0),
    ],
)
def test_logs_as_they_must_not_be(accounts: Accounts, log: list[Entry], clean: int) -> None:
    assert list(accounts.check("broker-1", log, Offset(clean))) != []


@pytest.mark.parametrize(
    ("last", "joined", "is_fault"), [(DELETED, 4, False), (DELETED, 3, True), (LAST, 4, True)], ids=str
)
def test_a_replica_that_was_not_in_sync_may_have_missed_a_deletion(last: Entry, joined: int, is_fault: bool) -> None:
    problems = list(accounts_of(FIRST, last).check("broker-1", [FIRST], Offset(0), Offset(joined)))
    assert bool(problems) == is_fault
