"""Opening record batches: as columns, as Arrow, as objects, and aiokafka's decode of the same bytes.

    python -m bench.columns [--json]

`payload` is checksums and decompression alone: the bound of whatever opens a batch on one core.
Each figure is the best of several rounds in which all take their turn, so the ratios hold on a busy machine too.
All verify checksums. Target: columns at least 3 times aiokafka's decode.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from aiokafka.record import default_records  # type: ignore[import-untyped]
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]

from pipeline.records.batch import HEADER_SIZE, iterate_headers, read_header, set_base_offset, verify_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec, decompress
from pipeline.records.record import iterate_records

TARGET = 3.0
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


def measure(log: bytes, count: int) -> dict[str, float]:
    """Records per second of each way."""
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            started = time.perf_counter()
            opened = way(log)
            best[name] = min(best[name], time.perf_counter() - started)
            if opened != count:
                raise ValueError(f"{name} found {opened} records of {count}")
    return {name: count / seconds for name, seconds in best.items()}


def main() -> int:
    as_json = "--json" in sys.argv[1:]
    has_extension = "_crecords" in default_records.DefaultRecordBatch.__module__
    rows: list[dict[str, Any]] = []
    if not as_json:
        print(f"Million records/s (times aiokafka, {'C extension' if has_extension else 'pure Python'})")
        print(f"{'record':>8} {'codec':>6}" + "".join(f"{name:>17}" for name in WAYS))
    for record_bytes in (100, 1000):
        for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
            speeds = measure(*make_batches(codec, record_bytes))
            ratios = {name: speed / speeds["aiokafka"] for name, speed in speeds.items()}
            rows.append(
                {
                    "record_bytes": record_bytes,
                    "codec": codec.name.lower(),
                    "records_per_second": {name: round(speed) for name, speed in speeds.items()},
                    "ratio_to_aiokafka": {name: round(ratio, 2) for name, ratio in ratios.items()},
                    "target_met": ratios["columns"] >= TARGET,
                }
            )
            if not as_json:
                cells = "".join(f"{speeds[name] / 1e6:>8.2f} ({ratios[name]:>5.1f}x)" for name in WAYS)
                print(f"{record_bytes:>6} B {codec.name.lower():>6} {cells}")
    if as_json:
        print(json.dumps({"name": "columns", "aiokafka_c_extension": has_extension, "target": TARGET, "rows": rows}))
    return 0 if all(row["target_met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
