"""Contexts: spaces of subjects and ids of their own, written in front of a subject's name. Pure.

`orders-value` is a subject of the default context `.`, `:.live:orders-value` one of the context `.live`, and `:.live:`
alone the context itself. `:.__GLOBAL:` holds settings of all contexts, and no subjects.

Source: Confluent's Schema Registry, "Schema contexts".
"""

from typing import Final

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
ANY_CONTEXT: Final = ":*:"
_PREFIX: Final = ":."


def split_subject(subject: str) -> tuple[str, str]:
    """Return the context of a subject, and its name within; a name of `""` stands for the whole context."""
    if not subject.startswith(_PREFIX):
        return DEFAULT_CONTEXT, subject
    context, _, name = subject[1:].partition(":")
    return context, name


def context_of(subject: str) -> str:
    """Return the context of a subject."""
    return split_subject(subject)[0] if subject.startswith(_PREFIX) else DEFAULT_CONTEXT


def join_subject(context: str, name: str) -> str:
    """Return the subject of this name in a context."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def normal_subject(subject: str) -> str:
    """Return a subject in its one form: the default context is not written."""
    return join_subject(*split_subject(subject)) if subject.startswith(_PREFIX) else subject


def subject_beside(parent: str, subject: str) -> str:
    """Return the subject that a schema of `parent` means: one without a context is in the context of `parent`."""
    context, name = split_subject(subject)
    return join_subject(context_of(parent), name) if context == DEFAULT_CONTEXT else subject


def in_scope(scope: str | None, subject: str) -> bool:
    """Return True if a subject is the scope, or in it: None and the global context are all, a context its subjects."""
    if scope is None or scope == subject:
        return True
    context, name = split_subject(scope)
    return not name and context in {GLOBAL_CONTEXT, context_of(subject)}


def normal_context(context: str) -> str:
    """Return the name of a context as in a path: `live`, `.live` and `:.live:` are one. Raises ValueError."""
    name = context.removeprefix(":").removesuffix(":")
    if ":" in name:
        raise ValueError(f"the context name '{context}' contains a colon")
    return name if name.startswith(".") else f".{name}"


def matches_prefix(prefix: str, subject: str) -> bool:
    """Return True if a subject begins with the prefix: in the prefix's context, `:*:` standing for any context."""
    context, name = split_subject(subject)
    if prefix.startswith(ANY_CONTEXT):
        return name.startswith(prefix.removeprefix(ANY_CONTEXT))
    if prefix.startswith(_PREFIX) and ":" not in prefix[1:]:
        return subject.startswith(prefix)
    wanted, beginning = split_subject(prefix)
    return context == wanted and name.startswith(beginning)
