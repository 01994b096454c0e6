"""A task of a load without broker and Spark, in a process of its own: `python -m tests.support.load_memory`.

Arguments: directory, file format, codec of the batches. The range has records of a megabyte among small ones, many
schemas, and timestamps of many hours. Prints the largest resident memory in bytes, and the rows that are in files.
"""

import json
import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.client.cluster.config import ClientConfig
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.hadoop.avro.avro_container import encode_long
from pipeline.hadoop.commit.layout import TaskAttempt
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.load.load_tasks import return_large_blocks
from pipeline.hadoop.load.task import write_task
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.range_reader import RangeReader, _Reading
from pipeline.hadoop.ranges.rows import arrow_schema, end_of_range, row_schema
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from tests.support.load_task import batch

SCHEMAS, HOURS = 8, 4
BATCHES, RECORDS = 24, 2_000
LARGE_BYTES = 1 << 20
FETCHED_BYTES = 4 << 20
FIRST_MS = 1_700_006_400_000


def schema_of(number: int) -> str:
    fields = [{"name": f"f{each}", "type": "string"} for each in range(1 + number % 4)]
    return json.dumps({"type": "record", "name": f"shop.Event{number}", "fields": fields})


def record(number: int) -> tuple[None, bytes, tuple[()], int]:
    chance = random.Random(number)
    schema = chance.randrange(SCHEMAS)
    size = LARGE_BYTES if number % 500 == 0 else chance.randrange(400)
    text = (b"%d " % number * (1 + size // 5))[:size]
    datum = b"".join(encode_long(len(text)) + text for _ in range(1 + schema % 4))
    return None, b"\x00" + schema.to_bytes(4, "big") + datum, (), FIRST_MS + 3_600_000 * chance.randrange(HOURS)


def fetched(codec: Codec) -> Iterator[FetchedBatches]:
    """Batches as a broker sends them: as many as fit into a response, or a larger one alone."""
    waiting, position, next_offset = b"", 0, 0
    for number in range(BATCHES):
        records = map(record, range(number * RECORDS, (number + 1) * RECORDS))
        built = batch(next_offset, records, codec, 1 << 30)
        next_offset += RECORDS
        waiting += built
        if len(waiting) >= FETCHED_BYTES or number == BATCHES - 1:
            yield FetchedBatches(
                topic_partition=TopicPartition("t", 0),
                data=memoryview(waiting),
                position=position,
                next_offset=next_offset,
                high_watermark=next_offset,
                log_start_offset=0,
            )
            waiting, position = b"", next_offset


def read(codec: Codec) -> Iterator[pa.RecordBatch]:
    """The rows, opened in a thread as RangeReader does it."""
    columns = arrow_schema(row_schema(include_batches=True))
    end = BATCHES * RECORDS
    reader = RangeReader(
        client=ClientConfig(),
        schema=columns,
        include_batches=True,
        fail_on_data_loss=True,
        max_opened_bytes=MIN_OPENED_BYTES,
    )
    reading = _Reading(reader, "t", OffsetRange(partition=0, start=0, end=end), 0)

    def pump() -> None:
        for batches in fetched(codec):
            reading.open(batches)
        reading.handover.put(end_of_range("t", 0, end, end, columns))
        reading.handover.put_last(None)

    threading.Thread(target=pump, daemon=True).start()
    return reading.handover.batches()


def main() -> None:
    directory, file_format, codec = Path(sys.argv[1]), sys.argv[2], Codec[sys.argv[3]]
    spec = TaskSpec(
        root=f"file://{directory}",
        topic="t",
        run_id="r1",
        format=file_format,
        codec="snappy",
        window_ms=600_000,
        quarantine=False,
        schemas=schema_of,
        path_format="hourly",
    )
    return_large_blocks()
    result = write_task(spec, TaskAttempt(run_id="r1", task=0, attempt=0), 0, read(codec))
    # The peak since this program runs: getrusage(2) has that of the process that forked it, too.
    (peak_kib,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    rows = sum(file.records for file in result.files)
    print(json.dumps({"bytes": int(peak_kib) * 1024, "rows": rows, "files": len(result.files)}))


if __name__ == "__main__":
    main()
