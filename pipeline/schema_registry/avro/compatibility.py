"""Levels of compatibility: which earlier versions of a subject a new one must read, or be read by. Pure."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice

from pipeline.schema_registry.avro.resolution import why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import MAX_COMPARISON_STEPS, TooMuchWorkError, Work

MAX_SENTENCES = 50


class CompatibilityLevel(StrEnum):
    """Promise of a new version of a subject towards the versions before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """True if all earlier versions count, not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """True if the new schema must read old data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """True if old schemas must read new data."""
        return self.value.startswith(("FORWARD", "FULL"))


def why_incompatible(
    level: CompatibilityLevel, new: AvroSchema, earlier: Sequence[tuple[int, AvroSchema]], work: Work | None = None
) -> list[str]:
    """Return why `new` may not follow `earlier` (version, schema; oldest first) at this level, in sentences.

    Schemas that cannot be compared within `work` may not follow one another, either.
    """
    sentences: list[str] = []
    try:
        sentences.extend(islice(_sentences(level, new, earlier, work or Work(MAX_COMPARISON_STEPS)), MAX_SENTENCES + 1))
    except TooMuchWorkError as error:
        sentences.append(str(error))
    return sentences if len(sentences) <= MAX_SENTENCES else [*sentences[:MAX_SENTENCES], "and more reasons"]


def _sentences(
    level: CompatibilityLevel, new: AvroSchema, earlier: Sequence[tuple[int, AvroSchema]], work: Work
) -> Iterator[str]:
    for version, old in earlier if level.transitive else earlier[-1:]:
        if level.backward:
            for reason in why_unreadable(reader=new, writer=old, work=work):
                yield f"the new schema (reader) cannot read data of version {version} (writer): {reason}"
        if level.forward:
            for reason in why_unreadable(reader=old, writer=new, work=work):
                yield f"version {version} (reader) cannot read data of the new schema (writer): {reason}"
