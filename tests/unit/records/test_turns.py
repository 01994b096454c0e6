"""Scans in turns: the same records whether a scan is over at once or not, and memory while it stops."""

from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.turns import BRIEF_BYTES, BRIEF_RECORDS, Steps, scan_in_turns
from tests.support.steps import to_end


class Seen:
    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.deltas: list[int] = []

    def __call__(self, _: int, offset_delta: int, __: bool, /) -> bool:
        self.deltas.append(offset_delta)
        return len(self.deltas) == self.enough


def _batch(count: int, headers: int = 0) -> tuple[bytes, BatchHeader]:
    builder = BatchBuilder(Codec.NONE, 1 << 30)
    for _ in range(count):
        assert builder.append(b"k", b"v", [("h", b"x" * 100)] * headers, 1)
    batch = builder.build()
    return bytes(batch[HEADER_SIZE:]), read_header(batch)


def _scan(payload: bytes, header: BatchHeader, need_bytes: int = 1, enough: int = -1) -> Steps[tuple[Seen, int]]:
    return scan_in_turns(header, need_bytes, lambda: [payload], lambda: Seen(enough), checks_headers=True)


def _held(steps: Steps[tuple[Seen, int]]) -> list[int]:
    """The memory that is charged at each stop of a scan."""
    before = OPENED_BATCHES.held_bytes
    held = [OPENED_BATCHES.held_bytes - before for _ in steps]
    assert OPENED_BATCHES.held_bytes == before
    return held


def test_a_brief_scan_stops_nowhere_and_is_not_charged() -> None:
    payload, header = _batch(BRIEF_RECORDS)
    assert _held(_scan(payload, header)) == []
    seen, size_bytes = to_end(_scan(payload, header))
    assert (seen.deltas, size_bytes) == (list(range(BRIEF_RECORDS)), len(payload))


def test_a_long_scan_stops_often_and_is_charged() -> None:
    payload, header = _batch(BRIEF_RECORDS + 1)
    held = _held(_scan(payload, header, 1000))
    assert len(held) > 10 and set(held) == {1000}
    assert to_end(_scan(payload, header))[0].deltas == list(range(BRIEF_RECORDS + 1))


def test_a_scan_that_takes_much_memory_is_charged() -> None:
    payload, header = _batch(1)
    assert _held(_scan(payload, header, BRIEF_BYTES + 1)) == [BRIEF_BYTES + 1]


def test_a_scan_ends_when_the_visitor_has_seen_enough() -> None:
    payload, header = _batch(BRIEF_RECORDS + 1)
    assert to_end(_scan(payload, header, enough=600))[0].deltas == list(range(600))
    assert len(_held(_scan(payload, header, enough=600))) == 2


def test_a_scan_of_few_records_with_very_many_headers_stops_within_a_record() -> None:
    payload, header = _batch(2, headers=20_000)
    held = _held(_scan(payload, header, 1000))
    assert len(held) > 10 and set(held) == {1000}
    assert to_end(_scan(payload, header))[0].deltas == [0, 1]
