"""The journal of source epochs: records that are read back or refused, void entries, and the shared end of two logs."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from pipeline.client.admin.leader_epochs import NO_EPOCH_END, EpochEnd
from pipeline.mirror.copying.divergence import FallenEpochsError, shared_end
from pipeline.mirror.journals.epochs import (
    MAX_ENTRIES,
    EpochRecordError,
    added_entries,
    decode_epochs,
    entries_before,
    merged_entries,
    source_epochs,
)
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import TopicPartition

CLICKS = TopicPartition("clicks", 0)
SOURCE = SourcePartition(cluster="east", partition=CLICKS, topic_id=UUID(int=7))
ENTRIES = ((0, 0), (3, 10), (5, 20))


def test_epochs_are_read_back_as_they_were_written() -> None:
    written = source_epochs(SOURCE, ENTRIES)
    key, value = written.encode()
    assert key == b"east/clicks/0"
    assert decode_epochs(key, value) == written


def test_a_record_holds_the_newest_epochs() -> None:
    written = source_epochs(SOURCE, tuple((number, number) for number in range(MAX_ENTRIES + 7)))
    assert len(written.entries) == MAX_ENTRIES
    assert written.entries[-1] == (MAX_ENTRIES + 6, MAX_ENTRIES + 6)


KEY, VALUE = source_epochs(SOURCE, ENTRIES).encode()
FIELDS = json.loads(VALUE)
WRONG: list[dict[str, Any]] = [
    {"version": 2},
    {"topic_id": "7"},
    {"topic_id": None},
    {"epochs": []},
    {"epochs": None},
    {"epochs": [[1]]},
    {"epochs": [[1, 2, 3]]},
    {"epochs": [[-1, 0]]},
    {"epochs": [[True, 0]]},
    {"epochs": [[1.5, 0]]},
    {"epochs": [["1", 0]]},
    {"epochs": [[2**31, 0]]},
    {"epochs": [[1, 2**63]]},
    {"epochs": [[1, 1]] * (MAX_ENTRIES + 1)},
]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (KEY, None),
        (b"east/clicks", VALUE),
        (b"east/clicks/x", VALUE),
        (b"east/clicks/-1", VALUE),
        (b"\xff/a/0", VALUE),
        (KEY, b"[]"),
        (KEY, b"[" * 10_000),
        *((KEY, json.dumps({**FIELDS, **wrong}).encode()) for wrong in WRONG),
    ],
)
def test_a_record_that_holds_no_epochs_is_refused(key: Any, value: Any) -> None:
    with pytest.raises(EpochRecordError):
        decode_epochs(key, value)


def test_entries_at_or_beyond_the_end_of_the_replica_are_void() -> None:
    assert [entries_before(ENTRIES, end) for end in (0, 10, 11, 21)] == [(), ENTRIES[:1], ENTRIES[:2], ENTRIES]


@pytest.mark.parametrize(
    ("entries", "added", "merged"),
    [
        (ENTRIES, ((6, 30),), (*ENTRIES, (6, 30))),
        (ENTRIES, ((3, 10),), ENTRIES),  # another mirror, which was ahead, recorded more
        (ENTRIES, ((5, 25),), ENTRIES),
        (ENTRIES, ((6, 15),), ((0, 0), (3, 10), (6, 15))),  # what was recorded behind is void
        (ENTRIES, ((4, 30),), ENTRIES),  # recorded late: the source had passed on
        ((), ((0, 0),), ((0, 0),)),
    ],
)
def test_entries_of_several_mirrors_are_merged(entries: Any, added: Any, merged: Any) -> None:
    assert merged_entries(entries, added) == merged


def test_epochs_are_added_where_they_change() -> None:
    assert added_entries((), [(0, 0)], 0) == ((0, 0),)
    assert added_entries(ENTRIES, [(5, 25)], 25) == ()
    assert added_entries(ENTRIES, [(5, 25), (6, 27), (8, 29)], 25) == ((6, 27), (8, 29))
    assert added_entries(ENTRIES, [(6, 23)], 25) == ((6, 25),)
    assert added_entries(ENTRIES, [(-1, 25)], 25) == ()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({5: (5, 30)}, 30),
        ({5: (5, 40)}, 30),
        ({5: (5, 23)}, 23),
        ({5: (3, 20), 3: (3, 20)}, 20),
        ({5: (3, 15), 3: (3, 15)}, 15),
        ({5: (4, 25), 3: (3, 12)}, 12),
        ({5: (0, 7), 0: (0, 7)}, 7),
        ({5: (2, 18), 0: (0, 12)}, 10),
        ({5: (3, 33)}, 30),
        ({5: (4, 25), 3: (-1, -1)}, None),
    ],
)
async def test_the_shared_end_is_found_through_older_epochs(
    ends: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, ends)
    cluster: Any = None
    assert await shared_end(cluster, CLICKS, ENTRIES, 30, timeout_s=1) == expected


async def test_no_shared_end_is_told_if_the_source_knows_no_epoch_as_high(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, {5: (-1, -1)})
    cluster: Any = None
    with pytest.raises(FallenEpochsError, match="no leader epoch as high as 5"):
        await shared_end(cluster, CLICKS, ENTRIES, 30, timeout_s=1)


def answer_with(monkeypatch: pytest.MonkeyPatch, ends: Any) -> None:
    """Have the source answer with these epochs and end offsets, by the epoch that is asked about."""

    async def answer(
        _cluster: Any, epochs: Mapping[TopicPartition, int], *, timeout_s: float
    ) -> dict[TopicPartition, EpochEnd]:
        assert timeout_s == 1
        epoch, end = ends[epochs[CLICKS]]
        return {CLICKS: NO_EPOCH_END if epoch < 0 else EpochEnd(leader_epoch=epoch, end_offset=end)}

    monkeypatch.setattr("pipeline.mirror.copying.divergence.ends_of_epochs", answer)
