"""Batches of a few KB that hold far more, opened by many threads at once: in a process of their own, to be measured."""

import multiprocessing
import random
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError
from pipeline.net.heap import keep_one_heap
from pipeline.records.batch import read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches, open_in_portions
from pipeline.records.compression import Codec, compress, plain_limits
from pipeline.records.key_values import keys_and_values
from pipeline.records.memory import MIN_OPENED_BYTES, OPENED_BATCHES
from pipeline.records.opening import UNCHARGED_BYTES, open_uncharged, opened
from pipeline.records.record import records_of_payload
from tests.support.bombs import bomb

THREADS = 4
MIB = 1 << 20
SLACK_BYTES = 32 * MIB
"""Libraries that are loaded, stacks, and what the allocator keeps."""


def open_records(batch: bytes) -> None:
    header = read_header(batch)
    with opened(batch, 0, header, MIN_OPENED_BYTES) as payload:
        assert sum(1 for _ in records_of_payload(payload, header)) == 1


def open_keys(batch: bytes) -> None:
    assert len(keys_and_values(batch, 0, read_header(batch))) == 1


# Columns are the caller's once they are opened, so each thread keeps those of a portion.
def open_columns(batch: bytes) -> None:
    assert sum(map(len, open_in_portions(batch * 3))) == 3


def highest_kb() -> int:
    """Resident memory at its highest. `getrusage` would begin with that of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def growth_bytes(open_batch: Callable[[bytes], None], batch: bytes, fails: bool) -> int:
    """How much this process grows at most while THREADS open the batch. Its heap is that of a broker."""
    keep_one_heap()
    open_columns(bytes(bomb(Codec.GZIP, MIB, 0)))  # so that kernels are compiled
    before_kb = highest_kb()
    outcomes = []

    def run() -> None:
        try:
            open_batch(batch)
        except OpenedBatchTooLargeError:
            outcomes.append(True)
        else:
            outcomes.append(False)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [fails] * THREADS
    assert OPENED_BATCHES.held_bytes == 0
    return (highest_kb() - before_kb) * 1024


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("codec", "plain_mib"), [(Codec.GZIP, 60), (Codec.ZSTD, 60), (Codec.ZSTD, 200)])
@pytest.mark.parametrize("open_batch", [open_records, open_keys, open_columns])
def test_threads_open_bombs_within_the_memory_for_opened_batches(
    codec: Codec, plain_mib: int, open_batch: Callable[[bytes], None]
) -> None:
    batch = bytes(bomb(codec, plain_mib * MIB, 0))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        grown = process.submit(growth_bytes, open_batch, batch, plain_mib * MIB > MIN_OPENED_BYTES).result()
    kept_bytes = THREADS * plain_mib * MIB if open_batch is open_columns and plain_mib * MIB <= MIN_OPENED_BYTES else 0
    assert grown <= 2 * MIN_OPENED_BYTES + kept_bytes + SLACK_BYTES


@pytest.mark.parametrize("codec", list(Codec))
def test_the_charge_is_twice_what_was_opened_and_given_back(codec: Codec) -> None:
    builder = BatchBuilder(codec, 16 * MIB)
    assert builder.append(b"k", bytes(4 * MIB), (), 0)
    batch = builder.build()
    with opened(batch, 0, read_header(batch), MIN_OPENED_BYTES) as payload:
        assert len(payload) > 4 * MIB
        assert OPENED_BATCHES.held_bytes == (0 if codec is Codec.NONE else 2 * len(payload))
    assert OPENED_BATCHES.held_bytes == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_opened_without_a_charge_are_small_or_have_no_codec(codec: Codec) -> None:
    for value_bytes in (0, 1000, UNCHARGED_BYTES - 100, UNCHARGED_BYTES, 4 * MIB):
        builder = BatchBuilder(codec, 16 * MIB)
        assert builder.append(b"k", bytes(value_bytes), (), 0)
        batch = builder.build()
        header = read_header(batch)
        with opened(batch, 0, header, MIN_OPENED_BYTES) as payload:
            is_uncharged = codec is Codec.NONE or len(payload) <= UNCHARGED_BYTES
            assert open_uncharged(batch, 0, header, MIN_OPENED_BYTES) == (payload if is_uncharged else None)
            if codec is not Codec.NONE:
                assert open_uncharged(batch, 0, header, len(payload) - 1) is None


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_batch_that_is_large_as_it_came_is_not_opened_without_a_charge(codec: Codec) -> None:
    builder = BatchBuilder(codec, 16 * MIB)
    assert builder.append(b"k", random.Random(1).randbytes(UNCHARGED_BYTES // 2), (), 0)
    batch = builder.build()
    assert open_uncharged(batch, 0, read_header(batch), MIN_OPENED_BYTES) is None


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("size", [0, 100, 3 * MIB, 9 * MIB])
def test_the_last_allowance_suffices_and_none_exceeds_the_bound(codec: Codec, size: int) -> None:
    packed = compress(codec, bytes(size))
    limits = plain_limits([(codec, packed)], 10 * MIB)
    assert limits == sorted(limits)
    assert size <= limits[-1] <= 10 * MIB
    assert plain_limits([(codec, packed), (codec, packed)], 2 * MIB)[-1] <= 2 * MIB


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_garbage_is_corrupt_and_holds_no_memory(codec: Codec) -> None:
    header = read_header(bomb(Codec.GZIP, MIB, 0))._replace(attributes=codec, batch_length=59)
    batch = bytes(61) + b"\xff" * 10
    with pytest.raises(CorruptBatchError), opened(batch, 0, header, MIN_OPENED_BYTES):
        pass
    with pytest.raises(CorruptBatchError):
        open_uncharged(batch, 0, header, MIN_OPENED_BYTES)
    assert OPENED_BATCHES.held_bytes == OPENED_BATCHES.waiting == 0


def test_a_batch_without_a_codec_is_opened_however_large() -> None:
    builder = BatchBuilder(Codec.NONE, 16 * MIB)
    assert builder.append(None, bytes(2 * MIB), (), 0)
    batch = builder.build()
    with opened(batch, 0, read_header(batch), MIB) as payload:
        assert len(payload) > 2 * MIB


def test_columns_name_the_batch_that_holds_too_much_and_give_the_memory_back() -> None:
    small = build(b"a")
    batches = small + bomb(Codec.ZSTD, 3 * MIB, 0)
    with pytest.raises(OpenedBatchTooLargeError) as caught:
        open_batches(batches, max_batch_bytes=2 * MIB)
    assert caught.value.offset == 0
    with pytest.raises(OpenedBatchTooLargeError) as caught:
        open_batches(batches, max_bytes=2 * MIB)
    assert caught.value.offset is None
    with pytest.raises(OpenedBatchTooLargeError):
        list(open_in_portions(batches, max_batch_bytes=2 * MIB))
    assert OPENED_BATCHES.held_bytes == 0
    assert len(open_batches(batches)) == 2


def build(value: bytes) -> bytearray:
    builder = BatchBuilder(Codec.NONE, MIB)
    assert builder.append(b"k", value, (), 0)
    return builder.build()
