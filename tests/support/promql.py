"""Names of series and labels in expressions of Prometheus, as far as deploy/monitoring uses its language."""

import re
from dataclasses import dataclass, field

_STRING = re.compile(r'"[^"]*"')
_COMMENT = re.compile(r"#.*")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(?!\s*\(|[\w:])")
_MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_KEYWORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True, slots=True)
class Names:
    """Series with the labels of their matchers, and labels that results are grouped by."""

    selected: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def names_in(expression: str) -> Names:
    """Return the names in an expression."""
    names = Names()
    text = _STRING.sub('""', _COMMENT.sub("", expression))
    for found in _GROUPING.findall(text):
        names.grouped.update(label.strip() for label in found.split(",") if label.strip())
    text = re.sub(r"\[[^\]]*\]|\b(?:offset)\s+\w+|\b[\d.]+(?:e\d+)?[a-z]*\b", " ", _GROUPING.sub(" ", text))
    for name, matchers in _SELECTOR.findall(text):
        if name not in _KEYWORDS:
            names.selected.setdefault(name, set()).update(_MATCHER.findall(matchers))
    return names


def faults_of(expression: str, series: dict[str, frozenset[str]], added: frozenset[str]) -> list[str]:
    """Return what is wrong: series that no service exports, and labels that its series do not have.

    `series`: labels by name of what is exported; `added`: labels of targets, which all series have.
    """
    names = names_in(expression)
    known = {name: series[name] | added for name in names.selected if name in series}
    faults = [f"{name} is exported by no service" for name in names.selected if name not in series]
    faults += [f"{name} has no label {label}" for name in known for label in sorted(names.selected[name] - known[name])]
    every = frozenset[str]().union(*known.values())
    return faults + [f"no series of the expression has a label {label}" for label in sorted(names.grouped - every)]
