"""Decisions about one request, and what becomes of the request by them."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.security.acl_table import CLUSTER_NAME, AclTable, Actor
from pipeline.broker.security.decisions import AclDecision
from pipeline.net.answers import Answer, HandlerResult, LargeAnswer, PendingAnswer, Throttled
from pipeline.net.owed import Owed
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType
from pipeline.protocol.schema import ZERO_UUID, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The decisions about the requests of one client."""

    actor: Actor
    table: AclTable
    view: ClusterView
    creates_topics: bool
    """True if the broker creates topics when a client asks for their metadata."""
    notes_allowed: bool = False
    """True if decisions that allow are noted, too."""
    decisions: list[AclDecision] = field(default_factory=list)
    """Decisions to log. What is only left out of an answer, or may be done by another right, is no refusal."""

    def may(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return the decision, and note it."""
        is_allowed = self.table.allows(self.actor, operation, resource_type, name)
        if not is_allowed or self.notes_allowed:
            self.decisions.append(AclDecision(operation, resource_type, name, is_allowed))
        return is_allowed

    def may_or_else(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return the decision, and note it if it allows: otherwise another one follows, or something stays unseen."""
        is_allowed = self.table.allows(self.actor, operation, resource_type, name)
        if is_allowed and self.notes_allowed:
            self.decisions.append(AclDecision(operation, resource_type, name, is_allowed))
        return is_allowed

    def may_topic(self, operation: AclOperation, name: str) -> bool:
        """Return the decision about a topic."""
        return self.may(operation, AclResourceType.TOPIC, name)

    def may_group(self, operation: AclOperation, name: str) -> bool:
        """Return the decision about a group."""
        return self.may(operation, AclResourceType.GROUP, name)

    def may_cluster(self, operation: AclOperation) -> bool:
        """Return the decision about the cluster."""
        return self.may(operation, AclResourceType.CLUSTER, CLUSTER_NAME)

    def sees_topic(self, name: str) -> bool:
        """True if an answer that names topics unasked may name this one."""
        return self.may_or_else(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)

    def may_with_cluster(self, operation: AclOperation) -> bool:
        """Return the decision about the cluster, where a right on single resources may do instead."""
        return self.may_or_else(operation, AclResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, every: int, resource_type: AclResourceType, name: str) -> int:
        """Return which of the operations `every`, as bits, the client may perform (KIP-430). That notes nothing."""
        return sum(
            1 << operation
            for operation in AclOperation
            if every >> operation & 1 and self.table.allows(self.actor, operation, resource_type, name)
        )

    def topic_named(self, name: str | None, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic that a request names by name or id; None for an id that no topic has."""
        if topic_id == ZERO_UUID:
            return name or ""
        topic = self.view.topic_of_id(topic_id)
        return None if topic is None else topic.name

    def refuse_topic(self, name: str | None, topic_id: uuid.UUID, *operations: AclOperation) -> ErrorCode | None:
        """Return the error code of a topic that a request names by name or id; None if all operations are allowed.

        An id that no topic has is refused, too: a handler that looks later may find a topic that nobody asked about.
        """
        named = self.topic_named(name, topic_id)
        if named is None:
            return None if self.table.is_super_user(self.actor) else ErrorCode.UNKNOWN_TOPIC_ID
        is_allowed = all(self.may_topic(operation, named) for operation in operations)
        return None if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Passage:
    """A request that may be handled, without what is refused. `merge` adds to its answer what the guard answers."""

    body: Message
    merge: Callable[[Any], Message] | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is not handled, and its answer."""

    answer: Message


Guard = Callable[[Gate, Any, int], Passage | Refused]
"""Takes the body and version of a request. Raises ProtocolError to have the connection closed."""


def answered_with(
    outcome: HandlerResult | Awaitable[HandlerResult],
    merge: Callable[[Any], Message],
    threads: trio.CapacityLimiter | None = None,
) -> HandlerResult | Awaitable[HandlerResult]:
    """Return the outcome of a handler with `merge` applied to its answer; one of `threads` merges a large one."""
    if isinstance(outcome, Owed):
        answer = outcome.answer
        outcome.answer = lambda: _merged_answer(answer(), merge)
        return outcome
    if threads is not None and isinstance(outcome, LargeAnswer):
        return _merged_large(outcome, merge, threads)
    if outcome is None or isinstance(outcome, Message | Throttled | LargeAnswer | PendingAnswer):
        return _merged_result(outcome, merge, threads)
    return _merged_later(outcome, merge, threads)


async def _merged_later(
    outcome: Awaitable[HandlerResult], merge: Callable[[Any], Message], threads: trio.CapacityLimiter | None
) -> HandlerResult:
    result = await outcome
    if threads is not None and isinstance(result, LargeAnswer):
        return await _merged_large(result, merge, threads)
    return _merged_result(result, merge, threads)


async def _merged_large(
    result: LargeAnswer, merge: Callable[[Any], Message], threads: trio.CapacityLimiter
) -> LargeAnswer:
    return replace(result, answer=await trio.to_thread.run_sync(merge, result.answer, limiter=threads))


def _merged_result(
    result: HandlerResult, merge: Callable[[Any], Message], threads: trio.CapacityLimiter | None
) -> HandlerResult:
    match result:
        case Throttled():
            return replace(result, answer=_merged_answer(result.answer, merge))
        case LargeAnswer():
            return replace(result, answer=merge(result.answer))
        case PendingAnswer():
            build = result.build

            async def build_merged() -> Message:
                built = await build()
                return merge(built) if threads is None else await trio.to_thread.run_sync(merge, built, limiter=threads)

            return replace(result, build=build_merged)
        case _:
            return _merged_answer(result, merge)


def _merged_answer(answer: Answer, merge: Callable[[Any], Message]) -> Answer:
    return None if answer is None else merge(answer)
