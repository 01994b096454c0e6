"""Rules of Kafka for the names of topics. Pure."""

import re

MAX_TOPIC_NAME_LENGTH = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return the reason why Kafka's rules forbid a topic's name, None if the name is legal."""
    if not name:
        return "the empty string is not allowed"
    if name in {".", ".."}:
        return f"'{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
