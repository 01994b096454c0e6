"""Reads parts of a registry's answers. Pure.

All raise TypeError or KeyError for what no registry answers: the JSON of another service may look like an empty list,
or a yes, if it is not looked at closely.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Part = TypeVar("Part")


def answered_number(value: Any) -> int:
    """Return a whole number."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def answered_text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def answered_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no JSON object")
    return value


def answered_list(value: Any, read: Callable[[Any], Part]) -> list[Part]:
    """Return a list of what `read` returns of each item."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return [read(item) for item in value]


def answered_reasons(value: Any) -> list[str]:
    """Return the reasons of an answer to a check of compatibility; none only if it says clearly that all is well."""
    is_compatible = value["is_compatible"]
    if not isinstance(is_compatible, bool):
        raise TypeError(f"{is_compatible!r} is neither true nor false")
    return [] if is_compatible else answered_list(value.get("messages") or [], str) or ["the registry gives no reason"]
