"""Documents of an audit service, read by commands: an answer of another form ends the command with a sentence."""

import math
from collections.abc import Mapping
from typing import Any, Final

from pipeline.cli.foreground import ServiceError, fetch_json
from pipeline.cli.terminal import output
from pipeline.errors import ConfigurationError

REPORT_PARTS: Final = {
    "verdict": str,
    "exact": bool,
    "complete": bool,
    "judged_ms": int,
    "hours": list,
    "hours_left_out": dict,
    "unknown": list,
    "clusters": dict,
    "watermarks": dict,
}
"""Parts of a report, and the types that they have in JSON."""
STORY_PARTS: Final = {"verdict": str, "sentences": list, "findings": list, "is_narrowed": bool}
"""Parts of the explanation of an hour."""


STATUS_PARTS: Final = {
    "verdict": str,
    "judged_ms": int,
    "from_ms": int,
    "hours": int,
    "hour_ms": int,
    "topics": list,
    "topics_left_out": int,
    "clusters": dict,
    "unknown": list,
}
"""Parts of the grid of topics and hours."""


def fetch_audit_document(url: str, parts: Mapping[str, type], *, timeout_s: float | None = None) -> dict[str, Any]:
    """Return a document with these parts. Raises ServiceError.

    So an answer of another service, or a part of one, is never taken for a verdict.
    """
    document = fetch_json(url, timeout_s=timeout_s)
    if not isinstance(document, dict):
        raise ServiceError(f"{url} answers something that is no document of an audit: is that another service?")
    wrong = [name for name, kind in parts.items() if not isinstance(document.get(name), kind)]
    if wrong:
        missing = output.enumeration(wrong, 5)
        raise ServiceError(f"{url} answers a document without {missing}: is that another service, or another version?")
    return document


def read_audit_document(url: str, parts: Mapping[str, type], *, timeout_s: float | None = None) -> dict[str, Any]:
    """Return what `fetch_audit_document` does. Ends the command if there is no such document."""
    try:
        return fetch_audit_document(url, parts, timeout_s=timeout_s)
    except ServiceError as error:
        output.exit_with(str(error))


def checked_topic(option: str, topic: str) -> str:
    """Return a topic that a URL can name. Raises ConfigurationError."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(option, f"{topic[:40]!a} is not UTF-8, so it is the name of no topic") from None
    return topic


def finite_seconds(option: str, seconds: float) -> float:
    """Return a time that is a number. Raises ConfigurationError."""
    if not math.isfinite(seconds):
        raise ConfigurationError(option, f"{seconds} is no number of seconds")
    return seconds
