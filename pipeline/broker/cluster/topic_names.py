"""Rules of Kafka for the names of topics. Pure."""

import re

MAX_TOPIC_NAME_LENGTH = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return the reason why Kafka's rules forbid a topic's name, None if the name is legal."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return reason
