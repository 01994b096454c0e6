"""Subject name strategies: the subject under which the schema of a topic's keys or values is registered. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pipeline.errors import ConfigurationError

SubjectNameStrategy = Callable[[str, bool, str | None], str]
"""Function of the topic, true for keys, and the full name of the schema's type (None for a type without a name)."""


def value_subject(topic: str) -> str:
    """Return the subject of a topic's values (Confluent's TopicNameStrategy)."""
    return f"{topic}-value"


def key_subject(topic: str) -> str:
    """Return the subject of a topic's keys (Confluent's TopicNameStrategy)."""
    return f"{topic}-key"


def topic_name_strategy(topic: str, is_key: bool, _record_name: str | None) -> str:
    """Return `<topic>-key` or `<topic>-value`."""
    return key_subject(topic) if is_key else value_subject(topic)


def record_name_strategy(_topic: str, _is_key: bool, record_name: str | None) -> str:
    """Return the full name of the record. Raises ConfigurationError for a type without a name."""
    return _required(record_name)


def topic_record_name_strategy(topic: str, _is_key: bool, record_name: str | None) -> str:
    """Return `<topic>-<full name of the record>`. Raises ConfigurationError for a type without a name."""
    return f"{topic}-{_required(record_name)}"


SUBJECT_NAME_STRATEGIES: Final[Mapping[str, SubjectNameStrategy]] = MappingProxyType(
    {
        "TopicNameStrategy": topic_name_strategy,
        "RecordNameStrategy": record_name_strategy,
        "TopicRecordNameStrategy": topic_record_name_strategy,
    }
)


def find_subject_name_strategy(name: str) -> SubjectNameStrategy:
    """Return a strategy by the name of Confluent's class, with or without its package. Raises ConfigurationError."""
    found = SUBJECT_NAME_STRATEGIES.get(name.rpartition(".")[2])
    if found is None:
        known = ", ".join(SUBJECT_NAME_STRATEGIES)
        raise ConfigurationError("subject.name.strategy", f"{name!r} is unknown; known are {known}")
    return found


def _required(record_name: str | None) -> str:
    if record_name is None:
        raise ConfigurationError(
            "subject.name.strategy", "needs a schema whose type has a name (record, enum, fixed), or TopicNameStrategy"
        )
    return record_name
