from typing import Any

import pytest

from pipeline.broker.admission import Admission
from pipeline.errors import InvalidRecordError, InvalidTimestampError
from pipeline.records.batch import read_header, set_log_append_time, validate_for_append
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def _batch(*timestamps: int, key: bytes | None = b"k", codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec, 1 << 20)
    for timestamp in timestamps:
        assert builder.append(key, b"value" * 20, (), timestamp)
    return builder.build()


def _admits(admission: Admission, *batches: bytearray) -> bool:
    return admission.admits([read_header(batch) for batch in batches], NOW_MS)


def _open(admission: Admission, *batches: bytearray) -> memoryview:
    joined = memoryview(bytearray(b"".join(batches)))
    return admission.admit_opened(joined, validate_for_append(joined, max_batch_bytes=1 << 20), NOW_MS)


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
    assert _admits(Admission(**demands), _batch(*timestamps)) is not opened


def test_records_without_a_key_are_named() -> None:
    admission = Admission(needs_keys=True)
    assert len(_open(admission, _batch(NOW_MS))) > 0
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    for key in (b"k", None, b"", None):
        builder.append(key, b"v", (), NOW_MS)
    assert _faults(admission, builder.build()) == (InvalidRecordError, [1, 3])


def test_records_out_of_time_are_named() -> None:
    admission = Admission(before_max_ms=HOUR_MS, after_max_ms=HOUR_MS, needs_keys=True)
    batch = _batch(NOW_MS, NOW_MS - HOUR_MS - 1, -1, NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS, codec=Codec.GZIP)
    assert _faults(admission, batch) == (InvalidTimestampError, [1, 3])
    assert len(_open(admission, _batch(NOW_MS, -1, NOW_MS - HOUR_MS))) > 0


def test_only_the_broker_sets_the_time_of_append() -> None:
    batch = _batch(NOW_MS)
    set_log_append_time(batch, 0, NOW_MS)
    assert _admits(Admission(), batch)
    with pytest.raises(InvalidTimestampError):
        _admits(Admission(is_append_time=True), batch)


@pytest.mark.parametrize("codec", Codec)
def test_batches_get_the_codec_of_the_topic(codec: Codec) -> None:
    batches = [_batch(NOW_MS, NOW_MS + 5, codec=before) for before in (Codec.NONE, Codec.GZIP, codec)]
    made = _open(Admission(codec=codec), *batches)
    headers = validate_for_append(made, max_batch_bytes=1 << 20)
    assert [header.codec for header in headers] == [codec] * 3
    wanted = [(record.key, record.value, record.timestamp_ms) for batch in batches for record in iterate_records(batch)]
    assert [(record.key, record.value, record.timestamp_ms) for record in iterate_records(made)] == wanted
