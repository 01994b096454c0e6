"""Demands of a topic on the schema ids of its records, and the subjects that an id must belong to. Pure.

Keys and values have demands of their own. A null key and a null value meet every demand, as in Confluent's broker.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import unquote

_STRATEGIES = "io.confluent.kafka.serializers.subject."
TOPIC_NAME: Literal["io.confluent.kafka.serializers.subject.TopicNameStrategy"] = (
    "io.confluent.kafka.serializers.subject.TopicNameStrategy"
)
RECORD_NAME = f"{_STRATEGIES}RecordNameStrategy"
TOPIC_RECORD_NAME = f"{_STRATEGIES}TopicRecordNameStrategy"
SubjectStrategy = Literal[
    "io.confluent.kafka.serializers.subject.TopicNameStrategy",
    "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy",
]


def subject_space(url: str) -> str:
    """Return the context that a registry's URL ends with, as it stands in front of subjects: `:.ctx:`.

    It is empty for the default context. Registries take `.../contexts/ctx` for `.../contexts/.ctx`.
    """
    base, _, encoded = url.rpartition("/")
    context = unquote(encoded).removeprefix(":").removesuffix(":").removeprefix(".")
    return f":.{context}:" if context and base.endswith("/contexts") else ""


class SubjectRule(NamedTuple):
    """The subject that a schema must have a version in: `prefix`, with the full name of its record if `has_name`."""

    prefix: str
    has_name: bool = False

    def subject(self, record_name: str) -> str:
        """Return the subject for a schema of this full name."""
        return self.prefix + record_name if self.has_name else self.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand on the keys or the values of a topic. `decodes`: the bytes after the id must be a datum of the schema."""

    strategy: SubjectStrategy = TOPIC_NAME
    decodes: bool = False

    def rule(self, topic: str, side: str) -> SubjectRule:
        """Return the rule for this topic; `side` is `key` or `value`."""
        if self.strategy == RECORD_NAME:
            return SubjectRule("", has_name=True)
        if self.strategy == TOPIC_RECORD_NAME:
            return SubjectRule(f"{topic}-", has_name=True)
        return SubjectRule(f"{topic}-{side}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The demands of a topic, at least one of them."""

    key: Demand | None = None
    value: Demand | None = None
