"""Changes of ACLs: written to the znode of their resource, then told to all brokers."""

from collections.abc import Callable, Collection

from pipeline.broker.security.acl_table import AclTable
from pipeline.coordination.acl_znodes import AclPattern, AclRule, decode_rules, encode_rules
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.update import update
from pipeline.errors import NodeContendedError
from pipeline.protocol.errors import ErrorCode, KafkaError

MAX_ZNODE_BYTES = 900_000
"""Bound of the rules of one resource: ZooKeeper refuses requests beyond 1 MB."""
MAX_RESOURCES = 100_000
"""Bound of resources with rules: each broker reads all of them when it starts."""


class AclChanges:
    """Changes of the rules in ZooKeeper, taken over into `table` at once; other brokers learn of them."""

    def __init__(self, zookeeper: CoordinationClient, table: AclTable) -> None:
        self._zookeeper = zookeeper
        self._table = table

    async def add(self, pattern: AclPattern, rules: Collection[AclRule]) -> None:
        """Add rules of a resource. Raises KafkaError, CoordinationError."""
        if not self._table.rules(pattern) and self._table.resources >= MAX_RESOURCES:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"There are rules for {MAX_RESOURCES} resources already.")
        await self._change(pattern, lambda known: known | frozenset(rules))

    async def remove(self, pattern: AclPattern, rules: Collection[AclRule]) -> None:
        """Remove rules of a resource. Raises KafkaError, CoordinationError."""
        await self._change(pattern, lambda known: known - frozenset(rules))

    async def _change(self, pattern: AclPattern, change: Callable[[frozenset[AclRule]], frozenset[AclRule]]) -> None:
        changed: frozenset[AclRule] = frozenset()

        def decide(found: NodeValue | None) -> bytes | None:
            nonlocal changed
            known = frozenset() if found is None else decode_rules(pattern.path, found.data)
            changed = change(known)
            if changed == known:
                return None
            data = encode_rules(changed)
            if len(data) > MAX_ZNODE_BYTES:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"The rules of {pattern.name} would take more than 1 MB: use prefixes."
                )
            return data

        try:
            await update(self._zookeeper, pattern.path, decide)
        except NodeContendedError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the rules; try again.") from error
        # also if nothing was to change: the one who wrote it may have died before it told the others
        await self._zookeeper.create(pattern.change_path, pattern.encode_change(), sequential=True)
        self._table.set(pattern, changed)
