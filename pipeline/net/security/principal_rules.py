"""Rules that make the name of a user from a certificate's distinguished name (KIP-371). Pure.

The first rule whose pattern fits the whole name counts: `RULE:PATTERN/REPLACEMENT/` with `L` or `U` behind it for lower
or upper case; `DEFAULT` keeps the name. Where no rule fits, the certificate is refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RULES = re.compile(r"DEFAULT|RULE:(?P<pattern>(?:[^/\\]|\\.)*)/(?P<replacement>(?:[^/\\]|\\.)*)/(?P<case>[LU]?)")
_GROUP = re.compile(r"\$(\d)")
MAX_NAME_LETTERS = 400
"""Longest name that rules are tried on. The time of a pattern may grow with the fifth power of it: Kafka's example with
five parts takes 0.1 s for the worst name of this length, and 20 s for one of 1,000 letters, while nothing else runs."""


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """A rule; `pattern` is None for DEFAULT. `case`: L, U or nothing."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def __str__(self) -> str:
        if self.pattern is None:
            return "DEFAULT"
        return f"RULE:{self.pattern.pattern}/{self.replacement}/{self.case}"

    def apply(self, name: str) -> str | None:
        """Return the name of the user; None if the rule does not fit."""
        if self.pattern is None:
            return name
        matched = self.pattern.fullmatch(name)
        if matched is None:
            return None
        made = _GROUP.sub(lambda group: matched[int(group[1])] or "", self.replacement)
        return {"L": made.lower(), "U": made.upper()}.get(self.case, made)


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse rules with commas between them. Raises ValueError."""
    rules: list[PrincipalRule] = []
    position = 0
    text = text.strip()
    while position < len(text):
        matched = _RULES.match(text, position)
        if matched is None:
            raise ValueError(f"{text[position:]!r} does not begin with DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
        rules.append(_rule(matched))
        position = matched.end()
        separator = re.compile(r"\s*(,\s*|$)").match(text, position)
        if separator is None:
            raise ValueError(f"a comma is missing before {text[position:]!r}")
        position = separator.end()
    return tuple(rules) or (PrincipalRule(),)


def _rule(matched: re.Match[str]) -> PrincipalRule:
    if matched[0] == "DEFAULT":
        return PrincipalRule()
    try:
        pattern = re.compile(matched["pattern"].replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"{matched['pattern']!r} is no regular expression: {error}") from None
    replacement = matched["replacement"].replace("\\/", "/")
    highest = max(map(int, _GROUP.findall(replacement)), default=0)
    if highest > pattern.groups:
        raise ValueError(f"${highest} stands in {replacement!r}, and the pattern has {pattern.groups} groups")
    return PrincipalRule(pattern, replacement, matched["case"])


def find_user(rules: Sequence[PrincipalRule], distinguished_name: str) -> str | None:
    """Return the name of the user by the first rule that fits; None if none does, or the name is too long."""
    if len(distinguished_name) <= MAX_NAME_LETTERS:
        for rule in rules:
            if user := rule.apply(distinguished_name):
                return user
    return None
