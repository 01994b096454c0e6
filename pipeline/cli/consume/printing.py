"""Prints fetched records: as documents, by a layout, or by columns where there are many.

Invariant: when `put` returns, the text of the records is written out. So a group commits nothing that was not printed.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from json import dumps
from typing import TYPE_CHECKING, Any

import trio

from pipeline.cli.consume.documents import readable, record_document
from pipeline.cli.consume.fetched import UnopenedBatchError, opened_batches, records_between
from pipeline.cli.consume.layout import Layout, render_records
from pipeline.cli.consume.values import values_of_payload
from pipeline.cli.terminal import output
from pipeline.cli.terminal.standard_output import StandardOutput
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.errors import CorruptBatchError
from pipeline.model import TopicPartition
from pipeline.records.record import Record

if TYPE_CHECKING:
    from pipeline.client.registry.avro import AvroDeserializer

MANY_RECORDS = 200_000
MANY_VALUES = 2_000_000
"""Records, and values alone, from which it pays to load the libraries for columns, which takes half a second."""
COLUMN_TOKENS = frozenset("sSRkKtpoT")
PORTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintOptions:
    """Options of printing. `last`: print only so many records, the newest of all."""

    layout: Layout
    json: bool = False
    max_records: int | None = None
    last: int | None = None
    skip_bad_batches: bool = False
    max_batch_bytes: int = 64 << 20


@dataclass(slots=True)
class Printer:
    """Prints records. Used by one task."""

    options: PrintOptions
    out: StandardOutput
    keys: "AvroDeserializer | None" = None
    values: "AvroDeserializer | None" = None
    expected: float = 0
    """Number of records, as far as it is known."""
    printed: int = 0
    bar: output.Progress = field(default_factory=output.Progress)
    _kept: list[tuple[int, TopicPartition, Record]] = field(default_factory=list)

    def is_full(self) -> bool:
        """True if as many records were printed as are wanted."""
        return self.printed == self.options.max_records

    async def put(self, fetched: FetchedBatches, end: float) -> int | None:
        """Print the records before `end`. Return the offset after the last printed record if more are not wanted.

        Ends the command at a batch that cannot be opened, or names the batch on stderr.
        """
        start = fetched.position
        if self._takes_columns():
            start = await trio.to_thread.run_sync(self._put_columns, fetched, end, abandon_on_cancel=True)
        while True:
            try:
                return await self._put_records(fetched, start, end)
            except UnopenedBatchError as error:
                self.tell_bad_batch(error, error.next_offset)
                start = error.next_offset

    async def finish(self) -> None:
        """Print the newest records, if only those are wanted."""
        for _, topic_partition, record in sorted(self._kept, key=lambda kept: kept[0])[-(self.options.last or 1) :]:
            await self.out.write(await self._text(topic_partition, [record]))
            self.printed += 1

    def tell_bad_batch(self, error: UnopenedBatchError, next_offset: int) -> None:
        """Name a batch that is skipped on stderr. Ends the command if it may not be skipped."""
        if not self.options.skip_bad_batches:
            output.exit_with(
                f"{error}. Skip such batches with --skip-bad-batches, or continue after this batch with "
                f"--partition {error.topic_partition.partition} --offset {error.next_offset}"
            )
        output.note(
            f"pipeline: skipped {error.topic_partition}, offsets {error.offset} to {next_offset - 1}: {error.cause}"
        )

    def _takes_columns(self) -> bool:
        many = MANY_RECORDS if self.options.layout.value_end is None else MANY_VALUES
        return (
            max(self.printed, self.expected) >= many
            and not self.options.json
            and self.options.last is None
            and self.values is None
            and self.options.layout.tokens <= COLUMN_TOKENS
        )

    def _put_columns(self, fetched: FetchedBatches, end: float) -> int:
        """Print what can be opened as columns, and return the offset after it. Runs in a thread."""
        from pipeline.cli.consume.column_layout import render_columns
        from pipeline.records.columns import open_in_portions

        start = fetched.position
        try:
            for opened in open_in_portions(
                fetched.data, max_batch_bytes=self.options.max_batch_bytes, portion_bytes=PORTION_BYTES
            ):
                columns = opened.between(start, int(min(end, fetched.next_offset)))
                wanted = len(columns)
                if self.options.max_records is not None:
                    wanted = min(wanted, self.options.max_records - self.printed)
                if wanted < len(columns):
                    columns = columns.between(start, int(columns.offset[wanted]))
                self.out.write_now(render_columns(self.options.layout, fetched.topic_partition, columns))
                self._count(wanted)
                start = int(columns.offset[-1]) + 1 if wanted else start
                if self.is_full():
                    return start
        except CorruptBatchError:
            return start  # opened record by record, the batch will be named
        return fetched.next_offset

    async def _put_records(self, fetched: FetchedBatches, start: int, end: float) -> int | None:
        topic_partition = fetched.topic_partition
        if self.is_full():
            return start
        opened = opened_batches(fetched, start, end, self.options.max_batch_bytes)
        async with aclosing(opened):
            async for header, payload in opened:
                is_whole = start <= header.base_offset and header.next_offset <= end
                if is_whole and (text := self._text_of_values(payload, header.record_count)) is not None:
                    await self.out.write(text)
                    self._count(header.record_count)
                    if self.is_full():
                        return header.next_offset
                    continue
                records = records_between(fetched, payload, header, start, end)
                if self.options.last is not None:
                    self._kept += [(record.timestamp_ms, topic_partition, record) for record in records]
                    continue
                wanted = records
                if self.options.max_records is not None:
                    wanted = records[: self.options.max_records - self.printed]
                if not wanted:
                    continue
                await self.out.write(await self._text(topic_partition, wanted))
                self._count(len(wanted))
                if self.is_full():
                    return wanted[-1].offset + 1
        return None

    def _text_of_values(self, payload: bytes, count: int) -> bytes | None:
        """Return the text of a batch of which all records are wanted and only the values are shown; else None."""
        options = self.options
        end = options.layout.value_end
        if options.json or options.last is not None or self.values is not None or end is None or not count:
            return None
        if options.max_records is not None and count > options.max_records - self.printed:
            return None
        values = values_of_payload(payload, count)
        if values is None:
            return None
        if None in values:
            values = [options.layout.null if value is None else value for value in values]
        return b"%s%s" % (end.join(values), end)  # type: ignore[arg-type]  # no None is left

    def _count(self, records: int) -> None:
        self.printed += records
        self.bar.advance(records)

    async def _text(self, topic_partition: TopicPartition, records: Sequence[Record]) -> bytes:
        """Return the text of the records. Ends the command at one that cannot be decoded, after those before it."""
        if not self.options.json and self.values is None:
            return render_records(self.options.layout, topic_partition, records)
        texts: list[bytes] = []
        for record in records:
            try:
                texts.append(await self._decoded_text(topic_partition, record))
            except _UndecodedError as error:
                await self.out.write(b"".join(texts))
                output.exit_with(str(error))
        return b"".join(texts)

    async def _decoded_text(self, topic_partition: TopicPartition, record: Record) -> bytes:
        key = await _decoded(topic_partition, record, record.key, self.keys)
        value = await _decoded(topic_partition, record, record.value, self.values)
        if self.options.json:
            return f"{output.json_text(record_document(topic_partition, record, key, value))}\n".encode()
        shown = Record(record.offset, record.timestamp_ms, _as_text(key), _as_text(value), record.headers)
        return render_records(self.options.layout, topic_partition, [shown])


class _UndecodedError(Exception):
    """A key or value does not match its schema."""


def _as_text(field_value: Any) -> bytes | None:
    """Return the JSON of what was decoded, with NaN and Infinity as `produce` reads them."""
    if field_value is None or isinstance(field_value, bytes):
        return field_value
    return dumps(readable(field_value)).encode()


async def _decoded(
    topic_partition: TopicPartition, record: Record, data: bytes | None, deserializer: "AvroDeserializer | None"
) -> Any:
    if deserializer is None or data is None:
        return data
    from pipeline.client.registry.errors import SerializationError

    try:
        return await deserializer.deserialize(data, record.headers)
    except SerializationError as error:
        raise _UndecodedError(
            f"{topic_partition}, offset {record.offset}: {error}; without --registry it is shown as text"
        ) from error
