"""Opening record batches: as columns, as Arrow, as objects, and aiokafka's decode of the same bytes.

`payload` is checksums and decompression alone: the bound of whatever opens a batch on one core.
Each figure is the best of several rounds in which all take their turn, so the ratios hold on a busy machine too.
All verify checksums. Target: columns at least 3 times aiokafka's decode.
"""

import random
import time
from collections.abc import Callable

from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords

from bench.report import Options, Row, Show, Target
from pipeline.records.batch import HEADER_SIZE, iterate_headers, read_header, set_base_offset, verify_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec, decompress
from pipeline.records.record import iterate_records

TARGET = Target(bound=3, at_least=True)
ROUNDS = 5
BATCH_BYTES = 256 * 1024
TOTAL_BYTES = 16 * 1024 * 1024
HEADERS = (("audit.host", b"web-17"),)
WORDS = b"GET POST /index /images/logo.png HTTP/1.1 200 404 Mozilla/5.0 Chrome Safari referrer session user".split()


def make_batches(codec: Codec, record_bytes: int) -> tuple[bytes, int]:
    """Log-like text in batches as a producer makes them, with keys and a header; and the number of records."""
    source = random.Random(record_bytes)
    log = bytearray()
    count = 0
    while count * record_bytes < TOTAL_BYTES:
        builder = BatchBuilder(codec, BATCH_BYTES)
        while True:
            line = b"%08x " % source.getrandbits(32) + b" ".join(source.choices(WORDS, k=record_bytes // 6))
            value = line[:record_bytes].ljust(record_bytes, b".")
            if not builder.append(b"%06d" % source.randrange(10**6), value, HEADERS, 1_700_000_000_000 + count):
                break
        batch = builder.build()
        set_base_offset(batch, 0, count)
        count += read_header(batch).record_count
        log += batch
    return bytes(log), count


def open_payload(log: bytes) -> int:
    count = 0
    for position, header in iterate_headers(log):
        verify_crc(log, position, header)
        decompress(header.codec, memoryview(log)[position + HEADER_SIZE : position + header.size_bytes], TOTAL_BYTES)
        count += header.record_count
    return count


def open_columns(log: bytes) -> int:
    return len(open_batches(log))


def open_arrow(log: bytes) -> int:
    return int(open_batches(log).to_arrow().num_rows)


def open_objects(log: bytes) -> int:
    return sum(1 for _ in iterate_records(log))


def decode_with_aiokafka(log: bytes) -> int:
    count = 0
    records = MemoryRecords(log)
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise ValueError("checksum")
        for _ in batch:
            count += 1
    return count


WAYS: dict[str, Callable[[bytes], int]] = {
    "payload": open_payload,
    "columns": open_columns,
    "arrow": open_arrow,
    "objects": open_objects,
    "aiokafka": decode_with_aiokafka,
}


def measure(options: Options, show: Show) -> list[Row]:
    """A row for each size, codec and way; aiokafka with its C extension if that is installed."""
    aiokafka = "aiokafka" if "_crecords" in default_records.DefaultRecordBatch.__module__ else "aiokafka without C"
    rows = []
    for record_bytes in (100, 1000):
        for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
            names = {way: f"{way}, {record_bytes} B, {codec.name.lower()}" for way in WAYS if way != "aiokafka"}
            if not any(map(options.selects, names.values())):
                continue
            show(f"columns: {record_bytes} B, {codec.name.lower()}")
            speeds = _speeds(*make_batches(codec, record_bytes), options.rounds or ROUNDS)
            for way, name in names.items():
                target = TARGET if way == "columns" else None
                if options.selects(name):
                    rows.append(
                        Row(
                            name=name,
                            unit="records/s",
                            ours=speeds[way],
                            peer=aiokafka,
                            theirs=speeds["aiokafka"],
                            target=target,
                        )
                    )
    return rows


def _speeds(log: bytes, count: int, rounds: int) -> dict[str, float]:
    """Records per second of each way."""
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(rounds):
        for name, way in WAYS.items():
            started = time.perf_counter()
            opened = way(log)
            best[name] = min(best[name], time.perf_counter() - started)
            if opened != count:
                raise ValueError(f"{name} found {opened} records of {count}")
    return {name: count / seconds for name, seconds in best.items()}
