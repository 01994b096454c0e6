"""Options of `pipeline consume`, as its parts take them."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.cli.consume.printing import PrintOptions
from pipeline.cli.consume.selection import Selection

PATTERN = "^"
"""First character of a topic that is a regular expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of `consume`. `client`, `consumer`: settings of ClientConfig, and of ConsumerConfig or GroupConfig."""

    selection: Selection
    printing: PrintOptions
    follow: bool = False
    group: str | None = None
    datacenter: str | None = None
    registry: str | None = None
    avro_keys: bool = False
    reader_schema: str | None = None
    client: dict[str, Any] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)
