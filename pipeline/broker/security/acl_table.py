"""ACLs in memory, and the decision whether a request may touch a resource. Pure.

The rules of a resource are those of its literal name, those of `*`, and those of every prefix of its name. One that
denies wins over all that allow. ALL stands for every operation; READ, WRITE, DELETE and ALTER allow DESCRIBE too, and
ALTER_CONFIGS allows DESCRIBE_CONFIGS; no rule that denies implies another. Super users may do everything. A resource
without any rule is closed, unless `allow_if_no_rule`.

Decisions are remembered until a rule changes. Threads may ask while rules change: a change replaces what is remembered
and the order of the prefixes as a whole, after the rules, so that no decision by old rules is remembered behind it.
Source: Kafka's AclAuthorizer, KIP-11, KIP-290, KIP-679.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import IPv6Address
from itertools import chain
from typing import NamedTuple, TypeVar

from pipeline.broker.security.prefixes import Prefixes
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

CLUSTER_NAME = "kafka-cluster"
"""Name of the one resource of the type CLUSTER."""
ANY_NAME = "*"
ANY_HOST = "*"
EVERYONE = "User:*"
MAX_REMEMBERED = 20_000
"""Bound of remembered decisions. A client that asks for ever new names has them forgotten, no more."""
MAX_REMEMBERED_LETTERS = 250
"""Longest name whose decision is remembered: topics have no longer one, and clients may ask for names of 32 KB."""

_IMPLYING: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
_Named = dict[tuple[AclResourceType, str], frozenset[AclRule]]
_Name = TypeVar("_Name", str, None)


class Actor(NamedTuple):
    """The one who asks: the name of the user, and the address that the request came from."""

    user: str
    host: str

    @property
    def principal(self) -> str:
        """The user as rules name it."""
        return f"User:{self.user}"


class AclTable:
    """The rules of a cluster. Empty until `replace`."""

    def __init__(
        self,
        super_users: Collection[str] = (),
        *,
        allow_if_no_rule: bool = False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the principals of the super users, `User:NAME`, and what to call after each change."""
        self._super_users = frozenset(super_users)
        self._allow_if_no_rule = allow_if_no_rule
        self._on_change = on_change
        self._literal: _Named = {}
        self._prefixed: _Named = {}
        self._prefixes: dict[AclResourceType, Prefixes] = {}
        """Prefixes with rules, in order; made when they are needed."""
        self.version = 0
        """Number of changes of rules."""
        self._remembered: dict[tuple[Actor, AclOperation, AclResourceType, str | None], bool] = {}
        """Decisions; without a name: about some resource of the type."""

    def __len__(self) -> int:
        """Return the number of rules."""
        return sum(map(len, chain(self._literal.values(), self._prefixed.values())))

    def __iter__(self) -> Iterator[tuple[AclPattern, AclRule]]:
        for pattern_type, named in ((AclPatternType.LITERAL, self._literal), (AclPatternType.PREFIXED, self._prefixed)):
            for (resource_type, name), rules in named.items():
                for rule in rules:
                    yield AclPattern(resource_type, pattern_type, name), rule

    def set(self, pattern: AclPattern, rules: Iterable[AclRule]) -> None:
        """Replace the rules of a resource."""
        named = self._named(pattern)
        key = pattern.resource_type, pattern.name
        rules = frozenset(rules)
        is_other_prefix = named is self._prefixed and bool(rules) != (key in named)
        if rules:
            named[key] = rules
        else:
            named.pop(key, None)
        if is_other_prefix:
            self._prefixes = {}
        self._remembered = {}
        self.version += 1
        self._on_change()

    def rules(self, pattern: AclPattern) -> frozenset[AclRule]:
        """Return the rules of a resource."""
        return self._named(pattern).get((pattern.resource_type, pattern.name), frozenset())

    @property
    def resources(self) -> int:
        """The number of resources that have rules."""
        return len(self._literal) + len(self._prefixed)

    def patterns(self) -> frozenset[AclPattern]:
        """Return the resources that have rules."""
        return frozenset(pattern for pattern, _ in self)

    def is_super_user(self, actor: Actor) -> bool:
        """True if the user may do everything."""
        return actor.principal in self._super_users

    def allows(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return the decision."""
        if len(name) > MAX_REMEMBERED_LETTERS:
            return self._decide(actor, operation, resource_type, name)
        return self._known((actor, operation, resource_type, name), self._decide)

    def allows_some(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """True if the user may do this with some resource of the type, existing or not (KIP-679)."""
        return self._known((actor, operation, resource_type, None), self._decide_some)

    def _known(
        self,
        asked: tuple[Actor, AclOperation, AclResourceType, _Name],
        decide: Callable[[Actor, AclOperation, AclResourceType, _Name], bool],
    ) -> bool:
        remembered = self._remembered
        known = remembered.get(asked)
        if known is None:
            known = decide(*asked)
            if len(remembered) >= MAX_REMEMBERED:
                remembered.clear()
            remembered[asked] = known
        return known

    def _decide_some(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType, _name: None) -> bool:
        if self.is_super_user(actor):
            return True
        if self._allow_if_no_rule and not self._denies_all(actor, operation, resource_type):
            return True
        literal = (
            self._is_allowed_by(actor, operation, rules) and not self._denies(actor, operation, kind, name)
            for (kind, name), rules in self._literal.items()
            if kind is resource_type
        )
        prefixed = (
            self._is_allowed_by(actor, operation, rules) and not self._denies_prefix(actor, operation, kind, name)
            for (kind, name), rules in self._prefixed.items()
            if kind is resource_type
        )
        return any(literal) or any(prefixed)

    def _named(self, pattern: AclPattern) -> _Named:
        return self._literal if pattern.pattern_type is AclPatternType.LITERAL else self._prefixed

    def _decide(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        if self.is_super_user(actor):
            return True
        found = list(self._matching(resource_type, name))
        if not found:
            return self._allow_if_no_rule
        if any(self._is_denied_by(actor, operation, rules) for rules in found):
            return False
        return any(self._is_allowed_by(actor, operation, rules) for rules in found)

    def _matching(self, resource_type: AclResourceType, name: str) -> Iterator[frozenset[AclRule]]:
        """Yield the rules of the name, of all names, and of each prefix of the name."""
        if (rules := self._literal.get((resource_type, name))) is not None:
            yield rules
        if name != ANY_NAME and (rules := self._literal.get((resource_type, ANY_NAME))) is not None:
            yield rules
        yield from self._matching_prefixes(resource_type, name)

    def _matching_prefixes(self, resource_type: AclResourceType, name: str) -> Iterator[frozenset[AclRule]]:
        known = self._prefixes
        prefixes = known.get(resource_type)
        if prefixes is None:
            named = list(self._prefixed)
            prefixes = known[resource_type] = Prefixes(name for kind, name in named if kind is resource_type)
        for prefix in prefixes.of(name):
            if (rules := self._prefixed.get((resource_type, prefix))) is not None:
                yield rules

    @staticmethod
    def _is_allowed_by(actor: Actor, operation: AclOperation, rules: Iterable[AclRule]) -> bool:
        implying = _IMPLYING.get(operation, (operation,))
        return any(_matches(rule, actor, implying, AclPermission.ALLOW) for rule in rules)

    @staticmethod
    def _is_denied_by(actor: Actor, operation: AclOperation, rules: Iterable[AclRule]) -> bool:
        return any(_matches(rule, actor, (operation,), AclPermission.DENY) for rule in rules)

    def _denies(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        return any(self._is_denied_by(actor, operation, rules) for rules in self._matching(resource_type, name))

    def _denies_prefix(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """True if every name that begins so is denied: by the rules of all names, or of a shorter prefix."""
        prefixes = self._matching_prefixes(resource_type, name)
        return self._denies_all(actor, operation, resource_type) or any(
            self._is_denied_by(actor, operation, rules) for rules in prefixes
        )

    def _denies_all(self, actor: Actor, operation: AclOperation, resource_type: AclResourceType) -> bool:
        return self._is_denied_by(actor, operation, self._literal.get((resource_type, ANY_NAME), ()))


def _matches(rule: AclRule, actor: Actor, operations: Collection[AclOperation], permission: AclPermission) -> bool:
    return (
        rule.permission is permission
        and rule.principal in (EVERYONE, actor.principal)
        and (rule.host in (ANY_HOST, actor.host) or _is_same_address(rule.host, actor.host))
        and (rule.operation is AclOperation.ALL or rule.operation in operations)
    )


def _is_same_address(one: str, other: str) -> bool:
    """True if these are spellings of one IPv6 address: Java, and so rules made for Kafka, write `0:0:0:0:0:0:0:1`."""
    if ":" not in one or ":" not in other:
        return False
    try:
        return IPv6Address(one) == IPv6Address(other)
    except ValueError:
        return False
