r"""The layout of a printed record: texts and tokens, as kcat's `-f`, rendered for records and for columns. Pure.

| token | stands for |
|---|---|
| %s %S %R | value; its length (-1: null); its length as 4 bytes, big-endian |
| %k %K | key; its length (-1: null) |
| %t %p %o | topic, partition, offset |
| %T | timestamp in ms since 1970 |
| %h | headers, as name=value,name=value |
| %% | % |

Escapes are those of `terminal.escapes`. Invariant: both renderings give the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.cli.terminal.escapes import unescape
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.records.record import Record

TOKENS: Final = "sSRkKtpoTh"
NULL_TEXT: Final = b"NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parts of a record's text: a token's letter, or bytes as they are. `null` stands for a missing key or value."""

    parts: tuple[str | bytes, ...]
    null: bytes = b""

    @property
    def tokens(self) -> frozenset[str]:
        """The tokens that the layout has."""
        return frozenset(part for part in self.parts if isinstance(part, str))

    @property
    def value_end(self) -> bytes | None:
        """The text after the value, if a record is its value and that text; else None."""
        match self.parts:
            case ("s", bytes() as end):
                return end
            case _:
                return None


def parse_layout(text: str, *, null: bytes = b"") -> Layout:
    """Parse a layout with tokens and escapes. Raises ConfigurationError."""
    parts: list[str | bytes] = []
    pieces = text.split("%")
    literal = pieces[0]
    rest = iter(pieces[1:])
    for piece in rest:
        if piece:
            if piece[0] not in TOKENS:
                listed = " ".join(f"%{token}" for token in TOKENS)
                raise ConfigurationError("--format", f"%{piece[0]} is no token; tokens are {listed} and %%")
            parts += [unescape("--format", literal), piece[0]]
            literal = piece[1:]
            continue
        after = next(rest, None)
        if after is None:
            raise ConfigurationError("--format", "ends within a token; %% stands for %")
        literal += f"%{after}"
    parts.append(unescape("--format", literal))
    return Layout(parts=tuple(part for part in parts if part), null=null)


def simple_layout(key_delimiter: bytes | None, delimiter: bytes, *, null: bytes = b"") -> Layout:
    """Return the layout of values, or of keys and values, each with its delimiter after it."""
    keys: tuple[str | bytes, ...] = () if key_delimiter is None else ("k", key_delimiter)
    return Layout(parts=(*keys, "s", delimiter), null=null)


def render_records(layout: Layout, topic_partition: TopicPartition, records: Sequence[Record]) -> bytes:
    """Return the text of records."""
    columns: list[list[bytes]] = []
    count = len(records)
    for part in layout.parts:
        if isinstance(part, bytes):
            columns.append([part] * count)
        else:
            columns.append([_RENDERERS[part](layout, topic_partition, record) for record in records])
    return interleaved(columns, count)


def interleaved(columns: Sequence[Sequence[bytes]], count: int) -> bytes:
    """Return the rows of the columns, one after the other."""
    pieces: list[bytes] = [b""] * (len(columns) * count)
    for index, column in enumerate(columns):
        pieces[index :: len(columns)] = column
    return b"".join(pieces)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode() + b"=" + (NULL_TEXT if content is None else content) for name, content in record.headers
    )


_RENDERERS: Final[dict[str, Callable[[Layout, TopicPartition, Record], bytes]]] = {
    "s": lambda layout, _, record: layout.null if record.value is None else record.value,
    "S": lambda _, __, record: b"%d" % _length(record.value),
    "R": lambda _, __, record: _length(record.value).to_bytes(4, "big", signed=True),
    "k": lambda layout, _, record: layout.null if record.key is None else record.key,
    "K": lambda _, __, record: b"%d" % _length(record.key),
    "t": lambda _, topic_partition, __: topic_partition.topic.encode(),
    "p": lambda _, topic_partition, __: b"%d" % topic_partition.partition,
    "o": lambda _, __, record: b"%d" % record.offset,
    "T": lambda _, __, record: b"%d" % record.timestamp_ms,
    "h": lambda _, __, record: _headers(record),
}
