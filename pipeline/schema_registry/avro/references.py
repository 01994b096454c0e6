"""Parses Avro schemas that use named types of other schemas, which may have references themselves. Pure.

A reference stands for one text; a text that is reached by several ways (a diamond) is parsed once. All texts together
are bounded in number and size, and parsed within one request's work.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import Work

MAX_REFERENCES: Final = 1_000
MAX_CHARACTERS: Final = 4_000_000

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ReferencedText(Generic[KeyT]):
    """Text of a schema, and the keys of the schemas that it refers to itself."""

    text: str
    references: Sequence[KeyT] = ()


class SchemaReferences(Generic[KeyT]):
    """Loads and parses the schemas behind references. `load` returns None for a key that stands for no Avro schema.

    A key is written into messages with `str`, as in `subject orders-value version 3`.
    """

    def __init__(self, load: Callable[[KeyT], ReferencedText[KeyT] | None], work: Work | None = None) -> None:
        self._load = load
        self._work = work or Work()
        self._parsed: dict[KeyT, AvroSchema] = {}
        self._characters = 0

    def parse(self, text: str, references: Sequence[KeyT], *, check_defaults: bool = True) -> AvroSchema:
        """Parse a text that uses the types of `references`. Raises InvalidSchemaError."""
        found = self._resolved(references)
        return parse_schema(text, references=found, check_defaults=check_defaults, work=self._work)

    def schemas(self, references: Sequence[KeyT]) -> list[AvroSchema]:
        """Return all schemas behind references, each behind those that it uses. Raises InvalidSchemaError."""
        self._resolved(references)
        return list(self._parsed.values())

    def _resolved(self, references: Sequence[KeyT]) -> list[AvroSchema]:
        # A path of keys with what is left of each one's references; recursion would end with Python's stack.
        path: list[tuple[KeyT | None, ReferencedText[KeyT], list[KeyT]]] = [
            (None, ReferencedText("", references), list(references))
        ]
        while path:
            key, referenced, left = path[-1]
            if left:
                self._descend(left.pop(0), path)
                continue
            path.pop()
            if key is not None:
                self._parsed[key] = self._parse(key, referenced)
        return [self._parsed[key] for key in references]

    def _descend(self, key: KeyT, path: list[tuple[KeyT | None, ReferencedText[KeyT], list[KeyT]]]) -> None:
        if key in self._parsed:
            return
        above = [one for one, _, _ in path]
        if key in above:
            cycle = " -> ".join(str(one) for one in [*above[above.index(key) :][:5], key])
            raise InvalidSchemaError("", f"the references form a circle: {cycle}")
        referenced = self._load(key)
        if referenced is None:
            raise InvalidSchemaError("", f"the reference to {key} leads to no Avro schema")
        self._characters += len(referenced.text)
        if len(self._parsed) + len(path) > MAX_REFERENCES or self._characters > MAX_CHARACTERS:
            reason = f"the references lead to more than {MAX_REFERENCES} schemas or {MAX_CHARACTERS} characters"
            raise InvalidSchemaError("", reason)
        path.append((key, referenced, list(referenced.references)))

    def _parse(self, key: KeyT, referenced: ReferencedText[KeyT]) -> AvroSchema:
        found = [self._parsed[one] for one in referenced.references]
        try:
            return parse_schema(referenced.text, references=found, check_defaults=False, work=self._work)
        except InvalidSchemaError as error:
            raise InvalidSchemaError("", f"the reference to {key} cannot be used: {error}") from error
