"""Reads the lines of `produce` and gives them to the publisher, at the rate and up to the number of the options."""

from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from pipeline.cli.produce.lines import LineError, Read, blocks_of_lines
from pipeline.cli.produce.publishing import Publisher
from pipeline.cli.produce.rows import Row, RowOptions, parse_row, split_lines
from pipeline.cli.produce.serializing import Serializers
from pipeline.cli.schema_options import SchemaOptions
from pipeline.cli.terminal.output import Progress
from pipeline.client.cluster.config import ProducerConfig

MANY_LINES = 100_000
MANY_BYTES = 16 << 20
MAX_TEXT_FACTOR = 16
"""Length of a line of JSON, in records of maximum size: its text may be much longer than the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Options of `produce`. `client`: settings of ClientConfig."""

    topic: str
    file: Path | None
    partition: int | None
    delimiter: bytes
    rows: RowOptions
    max_records: int | None
    rate: float | None
    client: dict[str, Any]
    config: ProducerConfig
    datacenter: str | None
    registries: str | None
    key_schema: SchemaOptions | None
    value_schema: SchemaOptions | None


@dataclass(slots=True)
class Reading:
    """The lines of one input on their way to the publisher."""

    options: ProduceOptions
    read: Read
    serializers: Serializers
    publisher: Publisher
    bar: Progress
    input_bytes: int = 0
    """Size of the input, as far as it is known."""
    _number: int = 0
    _started: float = 0.0

    async def publish_all(self) -> None:
        """Send every line. Raises LineError, InputError, UndeliveredError and what the producer raises."""
        self._started = trio.current_time()
        max_bytes = self.options.config.max_request_size
        is_plain = self.options.rows.is_plain and self.serializers.are_none
        blocks = blocks_of_lines(
            self.read, self.options.delimiter, max_bytes=max_bytes * (1 if is_plain else MAX_TEXT_FACTOR)
        )
        async with aclosing(blocks):
            async for lines in blocks:
                wanted = lines
                if self.options.max_records is not None:
                    wanted = lines[: self.options.max_records - self._number]
                if is_plain:
                    await self._send_plain(wanted)
                else:
                    await self._send_rows(wanted)
                self.bar.advance(len(wanted))
                if self._number == self.options.max_records:
                    return

    async def _send_plain(self, lines: list[bytes]) -> None:
        try:
            keys, values = split_lines(lines, self._number + 1, self.options.rows)
        except LineError as error:
            sound = lines[: error.number - self._number - 1]
            if sound:
                await self._send_plain(sound)
            raise
        if self.options.rate is None and await self._send_together(keys, values):
            self._number += len(lines)
            return
        for index, value in enumerate(values):
            key = keys[index] if isinstance(keys, list) else keys
            await self._send(Row(key, value, ()))

    async def _send_together(self, keys: list[bytes | None] | bytes | None, values: list[bytes | None]) -> bool:
        """Send lines at once, if that is possible. Columns, which load slowly, only where there are many lines."""
        if not isinstance(keys, list):
            return await self.publisher.send_list(self._number + 1, keys, values)
        are_many = self._number >= MANY_LINES or self.input_bytes >= MANY_BYTES
        return are_many and await self.publisher.send_table(self._number + 1, keys, values)

    async def _send_rows(self, lines: list[bytes]) -> None:
        for line in lines:
            row = parse_row(line, self._number + 1, self.options.rows)
            await self._send(await self.serializers.serialize(row, self._number + 1))

    async def _send(self, row: Row) -> None:
        if self.options.rate is not None:
            await trio.sleep_until(self._started + self._number / self.options.rate)
        await self.publisher.send(self._number + 1, row)
        self._number += 1
