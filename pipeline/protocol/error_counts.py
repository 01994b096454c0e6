"""Counts the error codes in a response, at any depth. Runs for every answer, so each class has generated code."""

from collections.abc import Callable
from typing import Any

from pipeline.protocol.schema import Message, declarations
from pipeline.protocol.source import Source

ERROR_CODE = "error_code"

_Counter = Callable[[Any, dict[int, int]], None]
_COUNTERS: dict[type, _Counter] = {}


def count_errors(message: Message, counts: dict[int, int]) -> None:
    """Add the message's error codes other than 0 to the counts."""
    (_COUNTERS.get(type(message)) or _new_counter(type(message)))(message, counts)


def _new_counter(cls: type) -> _Counter:
    source = Source(0, False)
    with source.block("def count(message, counts):"):
        _write(source, cls, "message")
        source.line("return")
    counter = _COUNTERS[cls] = source.compile("count", f"<error counter of {cls.__name__}>")
    return counter


def _write(source: Source, cls: type, name: str) -> None:
    for field in declarations(cls):
        if field.name == ERROR_CODE:
            with source.block(f"if {name}.{ERROR_CODE}:"):
                source.line(f"counts[{name}.{ERROR_CODE}] = counts.get({name}.{ERROR_CODE}, 0) + 1")
        elif field.struct is not None and _has_code(field.struct):
            part = source.name("part")
            if field.is_array:
                with source.block(f"for {part} in {name}.{field.name} or ():"):
                    _write(source, field.struct, part)
            else:
                source.line(f"{part} = {name}.{field.name}")
                with source.block(f"if {part} is not None:"):
                    _write(source, field.struct, part)


def _has_code(cls: type) -> bool:
    return any(
        field.name == ERROR_CODE or (field.struct is not None and _has_code(field.struct))
        for field in declarations(cls)
    )
