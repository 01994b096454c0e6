"""Paths below `/contexts/{context}`: the same paths for the subjects of one context. Pure.

Source: Confluent's Schema Registry, "Schema contexts".
"""

from urllib.parse import parse_qsl, quote, unquote, urlencode

from pipeline.schema_registry.state.contexts import ANY_CONTEXT, DEFAULT_CONTEXT, join_subject, normal_context

_BELOW = "/contexts/"


def without_context(path: str, query: str) -> tuple[str, str]:
    """Return path and query, both encoded, with the context in front of the subjects instead. Raises ValueError."""
    if not path.startswith(_BELOW):
        return path, query
    encoded, _, rest = path.removeprefix(_BELOW).partition("/")
    if not rest:
        return path, query
    context = normal_context(unquote(encoded))
    parts = rest.split("/")
    if parts[0] in {"config", "mode"}:
        parts[1:2] = [_qualified(context, parts[1] if len(parts) > 1 else "")]
    elif "subjects" in parts[:-1]:
        place = parts.index("subjects") + 1
        parts[place] = _qualified(context, parts[place])
    elif parts[:2] == ["schemas", "ids"]:
        query = _with(query, "subject", context)
    elif rest in {"schemas", "subjects"}:
        query = _with(query, "subjectPrefix", context)
    return "/" + "/".join(part for part in parts if part), query


def _qualified(context: str, encoded: str) -> str:
    subject = unquote(encoded)
    return encoded if _has_context(subject) or context == DEFAULT_CONTEXT else quote(join_subject(context, subject), "")


def _with(query: str, name: str, context: str) -> str:
    parameters = parse_qsl(query, keep_blank_values=True)
    given = next((value for key, value in parameters if key == name), "")
    subject = given if _has_context(given) else join_subject(context, given)
    return urlencode([*((key, value) for key, value in parameters if key != name), (name, subject)])


def _has_context(subject: str) -> bool:
    return subject.startswith((":.", ANY_CONTEXT))
