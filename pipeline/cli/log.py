"""`pipeline log`: show and verify files of a log, also of a running broker, since nothing is written."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.files import is_directory, is_file
from pipeline.errors import ConfigurationError, CorruptBatchError
from pipeline.log.checkpoint import OFFSET_CHECKPOINTS, decode_offsets
from pipeline.log.index import OFFSET_ENTRY, TIME_ENTRY
from pipeline.log.inspection.files import Batch, IndexCheck, Problem, read_batches, read_entries
from pipeline.log.inspection.verification import Verifier, check_snapshot, log_bytes, read_leader_epochs
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.log.producer_state import ProducerStates
from pipeline.log.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_offset,
)
from pipeline.log.transactions import TRANSACTION_ENTRY
from pipeline.model import MAX_INT64
from pipeline.records.memory import MAX_OPENED_BYTES
from pipeline.records.opening import opened
from pipeline.records.record import Record, records_of_payload

app = typer.Typer(no_args_is_help=True, help="Show and verify the files of a log.")

SETTLE_S = 0.2

Row = dict[str, Any]


@app.command()
def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A segment, index, snapshot or checkpoint.")],
    records: Annotated[bool, typer.Option("--records", help="Show each record of a segment too.")] = False,
    json: Json = False,
) -> None:
    """Show the contents of a log file and its damage; with --json one document a line.

    FILE is a segment (.log), an index (.index, .timeindex, .txnindex; compared with the segment beside it), a producer
    snapshot (.snapshot), leader epochs or a checkpoint of offsets. Exit code 1 if the file is damaged.
    """
    if not is_file(file):
        raise ConfigurationError(str(file), "is not a file")
    is_wrong = False
    for found in _rows(file, with_records=records):
        if isinstance(found, Problem):
            is_wrong = True
            found = _problem_row(found)
        if json:
            output.print_json(found)
        else:
            output.say("  ".join(f"{name} {value}" for name, value in found.items() if value is not None))
    if is_wrong:
        raise typer.Exit(output.EXIT_FAILED)


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A partition's directory, or a whole log dir.")],
    json: Json = False,
) -> None:
    """Check every segment, index, snapshot and checkpoint, and name the damage. Exit code 1 if there is any."""
    if not is_directory(directory):
        raise ConfigurationError(str(directory), "is not a directory")
    problems = []
    with output.progress("Verifying", log_bytes(directory)) as progress:
        verifier = Verifier(progress.advance, lambda: time.sleep(SETTLE_S))
        for problem in verifier.verify(directory):
            problems.append(_problem_row(problem))
            if not json:
                output.say(
                    f"{problem.path}{'' if problem.position is None else f':{problem.position}'}: {problem.reason}"
                )
    if json:
        output.print_json({"segments": verifier.segments, "batches": verifier.batches, "problems": problems})
    elif not problems:
        output.say(f"{verifier.batches} batches in {verifier.segments} segments: no damage.")
    if problems:
        raise typer.Exit(output.EXIT_FAILED)


def _problem_row(problem: Problem) -> Row:
    return {"problem": problem.reason, "file": str(problem.path), "position": problem.position}


def _rows(file: Path, *, with_records: bool) -> Iterator[Row | Problem]:
    if file.suffix == LOG_SUFFIX:
        yield from _segment_rows(file, with_records=with_records)
    elif file.suffix == INDEX_SUFFIX:
        yield from _index_rows(file, ("offset", "position"))
    elif file.suffix == TIME_INDEX_SUFFIX:
        yield from _index_rows(file, ("timestamp", "offset"))
    elif file.suffix == TRANSACTION_INDEX_SUFFIX:
        names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
        for found in read_entries(file, TRANSACTION_ENTRY, is_sorted=False):
            yield found if isinstance(found, Problem) else dict(zip(names, found[1], strict=True))
    elif file.suffix == SNAPSHOT_SUFFIX:
        yield from _snapshot_rows(file)
    elif file.name == LEADER_EPOCHS:
        epochs, problems = read_leader_epochs(file)
        yield from ({"epoch": epoch, "first_offset": offset} for epoch, offset in epochs)
        yield from problems
    elif file.name in OFFSET_CHECKPOINTS:
        yield from _checkpoint_rows(file)
    else:
        raise ConfigurationError(
            str(file),
            "is not a log file (.log, .index, .timeindex, .txnindex, .snapshot, leader epochs or a checkpoint)",
        )


def _segment_rows(file: Path, *, with_records: bool) -> Iterator[Row | Problem]:
    for batch in read_batches(file, lambda: time.sleep(SETTLE_S)):
        if isinstance(batch, Problem):
            yield batch
            continue
        yield _batch_row(batch)
        if batch.problem is not None:
            yield Problem(file, batch.position, batch.problem)
        elif with_records:
            try:
                with opened(batch.data, 0, batch.header, MAX_OPENED_BYTES) as payload:
                    yield from map(_record_row, records_of_payload(payload, batch.header))
            except CorruptBatchError as error:
                yield Problem(file, batch.position, error.reason)


def _batch_row(batch: Batch) -> Row:
    header = batch.header
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": batch.position,
        "bytes": header.size_bytes,
        "records": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "codec": header.codec.name.lower() if batch.problem is None else None,
        "timestamp_type": header.timestamp_type.name.lower(),
        "max_timestamp": header.max_timestamp,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc_ok": batch.problem is None,
    }


def _record_row(record: Record) -> Row:
    """Return a record with keys and values as text, or in base64 if they are not UTF-8."""
    headers = [[name, _text(value)] for name, value in record.headers]
    return {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": headers or None,
    }


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"


def _index_rows(file: Path, names: tuple[str, str]) -> Iterator[Row | Problem]:
    """Yield the entries with absolute offsets, then their contradictions to the segment beside the index."""
    base_offset = segment_offset(file.name, file.suffix)
    if base_offset is None:
        reason = "must be named by the base offset of its segment, in 20 digits"
        raise ConfigurationError(str(file), reason)
    entry = OFFSET_ENTRY if file.suffix == INDEX_SUFFIX else TIME_ENTRY
    segment = file.with_suffix(LOG_SUFFIX)
    check = IndexCheck(file, base_offset, entry)
    for found in read_entries(file, entry):
        if isinstance(found, tuple):
            row = dict(zip(names, found[1], strict=True))
            yield {**row, "offset": base_offset + row["offset"]}
    if segment.exists():
        see = check.see_position if entry is OFFSET_ENTRY else check.see_time
        for batch in read_batches(segment, lambda: time.sleep(SETTLE_S)):
            if isinstance(batch, Problem):
                yield batch
                return
            see(batch)
        check.end()
    yield from check.problems


def _snapshot_rows(file: Path) -> Iterator[Row | Problem]:
    problems = list(check_snapshot(file))
    producers = ProducerStates(expiration_ms=MAX_INT64)
    if not problems:
        producers.restore(file.read_bytes())
    for producer in producers.active():
        yield {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.last_append_ms,
        }
    yield from problems


def _checkpoint_rows(file: Path) -> Iterator[Row | Problem]:
    try:
        offsets = decode_offsets(file.read_bytes())
    except ValueError as error:
        yield Problem(file, None, str(error))
        return
    for name, offset in offsets.items():
        yield {"topic": name.topic, "partition": name.partition, "offset": offset}
