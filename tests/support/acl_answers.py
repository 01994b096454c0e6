"""What an answer says about rights: its error codes and authorised operations, by the names of the elements."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

CODES = ("error_code", "authorized_operations")
"""Endings of the names of fields that are compared."""
NAMES = frozenset(
    {
        *("name", "topic", "topic_id", "group_id", "key", "user", "resource_name", "resource_type", "principal"),
        *("index", "partition", "partition_index", "partition_id"),
    }
)
"""Fields that say which element an error code belongs to."""
OWN_PREFIXES = ("gone-", "made-")
MANY = 8
"""Elements of a request are fewer; a longer list is one of all topics, in which those of single users do not count."""
UNCOMPARED = frozenset({"configs", "brokers", "members", "node_endpoints", "log_dir", "api_keys"})
"""Fields whose content differs between clusters; that there is some is compared."""


def told(value: Any, topics: Mapping[UUID, str]) -> Any:
    """Codes, operations and names of an answer, without the rest; lists in the order of their names."""
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for field in fields(value):
            each = getattr(value, field.name)
            if field.name in UNCOMPARED:
                found[field.name] = bool(each)
            elif isinstance(each, UUID) and field.name in NAMES:
                found[field.name] = topics.get(each, "none")
            elif field.name.endswith(CODES) or field.name in NAMES:
                found[field.name] = each
            elif isinstance(each, tuple | list) and each:
                found[field.name] = told(each, topics)
        return found
    if isinstance(value, tuple | list):
        is_listing = len(value) > MANY
        shown = [each for each in value if is_dataclass(each) and not (is_listing and _is_of_one_user(each))]
        parts = [told(each, topics) for each in shown]
        return sorted(parts, key=repr)
    return value


def _is_of_one_user(element: Any) -> bool:
    """True if the element is about a topic that one user deletes or creates, which others see or do not see."""
    return str(getattr(element, "name", "")).startswith(OWN_PREFIXES)
