import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.broker.settings.admission import MAX_RECORDS_NAMED, MAX_WRITTEN_BYTES, Admission
from pipeline.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    OpenedBatchTooLargeError,
)
from pipeline.records.batch import (
    HEADER_SIZE,
    read_header,
    set_base_offset,
    set_log_append_time,
    validate_for_append,
    write_crc,
    write_header,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES, OPENED_BATCHES
from pipeline.records.record import iterate_records
from tests.support.bombs import batch_of, bomb
from tests.support.cleaning import Directory
from tests.support.steps import to_end

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def _batch(*timestamps: int, key: bytes | None = b"k", codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec, 1 << 20)
    for timestamp in timestamps:
        assert builder.append(key, b"value" * 20, (), timestamp)
    return builder.build()


def _admission(**demands: Any) -> Admission:
    return Admission(max_batch_bytes=1 << 20, **demands)


def _admits(admission: Admission, *batches: bytearray) -> bool:
    return admission.admits([read_header(batch) for batch in batches], NOW_MS)


def _open(admission: Admission, *batches: bytearray) -> memoryview:
    joined = memoryview(bytearray(b"".join(batches)))
    return to_end(admission.admit_opened(joined, validate_for_append(joined, max_batch_bytes=1 << 20), NOW_MS))


def _faults(admission: Admission, *batches: bytearray) -> tuple[type, list[int]]:
    with pytest.raises(InvalidRecordError) as refusal:
        _open(admission, *batches)
    return refusal.type, [index for index, _ in refusal.value.record_errors]


@pytest.mark.parametrize(
    ("demands", "timestamps", "opened"),
    [
        ({}, [0, 2**50], False),
        ({"after_max_ms": HOUR_MS}, [NOW_MS + HOUR_MS], False),
        ({"after_max_ms": HOUR_MS}, [NOW_MS, NOW_MS + HOUR_MS + 1], True),
        ({"after_max_ms": HOUR_MS, "is_append_time": True}, [2**50], False),
        ({"before_max_ms": HOUR_MS}, [NOW_MS - HOUR_MS], False),
        ({"before_max_ms": HOUR_MS}, [-1], False),
        ({"before_max_ms": HOUR_MS}, [NOW_MS - HOUR_MS - 1], True),
        ({"before_max_ms": HOUR_MS}, [NOW_MS, NOW_MS], True),
        ({"needs_keys": True}, [NOW_MS], True),
        ({"codec": Codec.NONE}, [NOW_MS], False),
        ({"codec": Codec.LZ4}, [NOW_MS], True),
    ],
)
def test_a_batch_is_opened_only_if_its_header_does_not_suffice(
    demands: dict[str, Any], timestamps: list[int], opened: bool
) -> None:
    assert _admits(_admission(**demands), _batch(*timestamps)) is not opened


def test_records_without_a_key_are_named() -> None:
    admission = _admission(needs_keys=True)
    assert len(_open(admission, _batch(NOW_MS))) > 0
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    for key in (b"k", None, b"", None):
        builder.append(key, b"v", (), NOW_MS)
    assert _faults(admission, builder.build()) == (InvalidRecordError, [1, 3])


def test_records_out_of_time_are_named() -> None:
    admission = _admission(before_max_ms=HOUR_MS, after_max_ms=HOUR_MS, needs_keys=True)
    batch = _batch(NOW_MS, NOW_MS - HOUR_MS - 1, -1, NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS, codec=Codec.GZIP)
    assert _faults(admission, batch) == (InvalidTimestampError, [1, 3])
    assert len(_open(admission, _batch(NOW_MS, -1, NOW_MS - HOUR_MS))) > 0


@pytest.mark.parametrize("told", [2**63 - 1, NOW_MS + 24 * HOUR_MS])
@pytest.mark.parametrize("demands", [{}, {"codec": Codec.ZSTD}, {"codec": Codec.GZIP}])
def test_a_header_that_lies_about_its_newest_record_is_set_right(told: int, demands: dict[str, Any]) -> None:
    lying = _batch(NOW_MS, NOW_MS + 5, NOW_MS + 3, codec=Codec.GZIP)
    write_header(lying, read_header(lying)._replace(max_timestamp=told))
    admission = _admission(after_max_ms=HOUR_MS, **demands)
    assert not _admits(admission, lying)
    admitted = _open(admission, _batch(NOW_MS), lying, _batch(NOW_MS + 7))
    headers = validate_for_append(admitted, max_batch_bytes=1 << 20)
    assert [header.max_timestamp for header in headers] == [NOW_MS, NOW_MS + 5, NOW_MS + 7]
    second = memoryview(admitted)[headers[0].size_bytes :]
    assert [record.timestamp_ms for record in iterate_records(second)][:3] == [NOW_MS, NOW_MS + 5, NOW_MS + 3]


def test_only_the_broker_sets_the_time_of_append() -> None:
    batch = _batch(NOW_MS)
    set_log_append_time(batch, 0, NOW_MS)
    assert _admits(_admission(), batch)
    with pytest.raises(InvalidTimestampError):
        _admits(_admission(is_append_time=True), batch)


@pytest.mark.parametrize("codec", Codec)
def test_batches_get_the_codec_of_the_topic(codec: Codec) -> None:
    batches = [_batch(NOW_MS, NOW_MS + 5, codec=before) for before in (Codec.NONE, Codec.GZIP, codec)]
    made = _open(_admission(codec=codec), *batches)
    headers = validate_for_append(made, max_batch_bytes=1 << 20)
    assert [header.codec for header in headers] == [codec] * 3
    wanted = [(record.key, record.value, record.timestamp_ms) for batch in batches for record in iterate_records(batch)]
    assert [(record.key, record.value, record.timestamp_ms) for record in iterate_records(made)] == wanted


def test_many_batches_that_are_compressed_anew_take_so_much_and_no_more() -> None:
    """Each is small for itself; together they would take the broker's memory."""
    builder = BatchBuilder(Codec.GZIP, 1 << 20)
    assert builder.append(b"k", bytes(1 << 19), (), NOW_MS)
    swelling = builder.build()
    allowed = MAX_WRITTEN_BYTES // (1 << 19) - 1
    assert len(_open(_admission(codec=Codec.NONE), *[swelling] * allowed)) > allowed << 19
    with pytest.raises(BatchTooLargeError):
        _open(_admission(codec=Codec.NONE), *[swelling] * (allowed + 1))
    assert OPENED_BATCHES.held_bytes == 0


def test_batches_that_stay_as_they_are_are_not_copied() -> None:
    batches = memoryview(bytearray(b"".join(_batch(NOW_MS, NOW_MS + 5, codec=Codec.GZIP) for _ in range(3))))
    headers = validate_for_append(batches, max_batch_bytes=1 << 20)
    admitted = to_end(_admission(needs_keys=True).admit_opened(batches, headers, NOW_MS))
    assert admitted.obj is batches.obj


@pytest.mark.long
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_batch_that_holds_more_than_the_cleaner_opens_is_refused(codec: Codec) -> None:
    with pytest.raises(OpenedBatchTooLargeError):
        _open(_admission(needs_keys=True), bomb(codec, MIN_OPENED_BYTES + (1 << 20), NOW_MS))
    assert len(_open(_admission(needs_keys=True), bomb(codec, MIN_OPENED_BYTES - (1 << 20), NOW_MS))) > 0
    assert OPENED_BATCHES.held_bytes == 0


def test_a_batch_that_would_be_too_large_without_its_codec_is_refused_before_it_is_opened_whole() -> None:
    with pytest.raises(BatchTooLargeError):
        _open(_admission(codec=Codec.NONE), bomb(Codec.GZIP, 32 << 20, NOW_MS))


def test_the_first_of_very_many_records_without_a_key_are_named() -> None:
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    for _ in range(50_000):
        assert builder.append(None, b"", (), NOW_MS)
    with pytest.raises(InvalidRecordError, match=f"at least {MAX_RECORDS_NAMED} records") as refusal:
        _open(_admission(needs_keys=True), builder.build())
    assert [index for index, _ in refusal.value.record_errors] == list(range(MAX_RECORDS_NAMED))


def _damaged(rng: random.Random) -> bytearray:
    """A batch with up to three bytes of its records changed, or a base time near the end of all times."""
    batch = _batch(*range(NOW_MS, NOW_MS + rng.randrange(1, 4)), codec=Codec.NONE)
    payload = bytearray(batch[HEADER_SIZE:])
    for _ in range(rng.randrange(4)):
        payload[rng.randrange(len(payload))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    base_timestamp = rng.choice((NOW_MS, 2**63 - 1, -(2**63)))
    header = read_header(batch)._replace(base_timestamp=base_timestamp)
    return batch_of(bytes(payload), header, rng.choice(tuple(Codec)))


@pytest.mark.long
def test_records_that_a_compacted_topic_admits_can_be_cleaned(tmp_path: Path) -> None:
    rng, admission, admitted = random.Random(1), _admission(needs_keys=True), 0
    log = Directory(tmp_path)
    for _ in range(2000):
        try:
            batch = bytearray(_open(admission, _damaged(rng)))
        except CorruptBatchError:
            continue
        set_base_offset(batch, 0, log.end_offset)
        log.add(batch)
        admitted += 1
    assert admitted > 100
    assert log.clean()


def test_a_compacted_topic_refuses_headers_that_no_reader_opens() -> None:
    batch = _batch(NOW_MS)
    batch[-1] = 2  # one header, and no bytes of it
    write_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatchError, match="a record is cut off"):
        _open(_admission(needs_keys=True), batch)
