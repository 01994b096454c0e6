"""Dispatch of requests to the handlers of their api keys."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import trio

from pipeline.broker.quotas.enforcement import handle_within, is_limited, replica_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.requests.current_leaders import with_addresses
from pipeline.broker.requests.guards.gate import Gate, Guard, Passage, Refused, answered_with
from pipeline.broker.requests.guards.table import NEEDS
from pipeline.broker.requests.handlers import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from pipeline.broker.runtime.slicing import SLICINGS, handle_in_slices
from pipeline.broker.security.acl_table import AclTable, Actor
from pipeline.errors import ProtocolError
from pipeline.net.answers import HandlerResult, LargeAnswer, Peer
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.produce import ProduceRequest
from pipeline.protocol.schema import Message

ApiHandler = Callable[[BrokerContext, Any, int, Caller], HandlerResult | Awaitable[HandlerResult]]
"""A handler takes a request's body, version and sender; it answers at once or returns a coroutine that will."""

HANDLERS: Mapping[ApiKey, ApiHandler] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce.handle,
        ApiKey.FETCH: fetch.handle,
        ApiKey.LIST_OFFSETS: list_offsets.handle,
        ApiKey.METADATA: metadata.handle,
        ApiKey.FIND_COORDINATOR: find_coordinator.handle,
        ApiKey.OFFSET_COMMIT: offset_commit.handle,
        ApiKey.OFFSET_FETCH: offset_fetch.handle,
        ApiKey.OFFSET_DELETE: offset_delete.handle,
        ApiKey.JOIN_GROUP: join_group.handle,
        ApiKey.HEARTBEAT: heartbeat.handle,
        ApiKey.LEAVE_GROUP: leave_group.handle,
        ApiKey.SYNC_GROUP: sync_group.handle,
        ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
        ApiKey.LIST_GROUPS: list_groups.handle,
        ApiKey.DELETE_GROUPS: delete_groups.handle,
        ApiKey.SASL_HANDSHAKE: sasl_handshake.handle,
        ApiKey.SASL_AUTHENTICATE: sasl_authenticate.handle,
        ApiKey.API_VERSIONS: lambda *_: api_versions.describe(HANDLERS),
        ApiKey.CREATE_TOPICS: create_topics.handle,
        ApiKey.DELETE_TOPICS: delete_topics.handle,
        ApiKey.DELETE_RECORDS: delete_records.handle,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
        ApiKey.DESCRIBE_ACLS: describe_acls.handle,
        ApiKey.CREATE_ACLS: create_acls.handle,
        ApiKey.DELETE_ACLS: delete_acls.handle,
        ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
        ApiKey.ALTER_CONFIGS: alter_configs.handle,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
        ApiKey.CREATE_PARTITIONS: create_partitions.handle,
        ApiKey.ELECT_LEADERS: elect_leaders.handle,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas.handle,
        ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas.handle,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials.handle,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials.handle,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
        ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
    }
)

SERVED: Mapping[int, ApiKey] = MappingProxyType({key.value: key for key in HANDLERS})
"""The api keys that have a handler."""

LONG_POLLS = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that end when their client leaves: they wait for records, members or searches, with nothing half done."""


NAMES_LEADERS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""Requests whose answers name the present leaders of partitions (KIP-951)."""


GUARDED_AT_ONCE_BYTES = 16 * 1024
"""Size of a request that is guarded at once. A larger one names too many resources: a thread decides about them."""
GUARDED_TOPICS_AT_ONCE = 1000
"""Topics of a Produce request, of which the size says little, that are guarded at once."""
GUARD_ATTEMPTS = 10
"""Attempts to decide while rules change, before all others wait for the last one."""
GUARDS_IN_THREADS = 2
"""Large requests and answers that threads guard at a time."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """The handler that the server calls."""

    broker: BrokerContext
    guards: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(GUARDS_IN_THREADS))

    def handle(self, request: Request[Message], peer: Peer) -> HandlerResult | Awaitable[HandlerResult]:
        """Answer a request, at once or later. Raises what the handler raises."""
        caller = Caller(request.client_id, peer.address.host, peer.principal, peer.listener)
        if self.broker.acls is None:
            return self._handle(request, caller)
        return self._handle_guarded(self.broker.acls, request, caller)

    def _handle_guarded(
        self, acls: AclTable, request: Request[Message], caller: Caller
    ) -> HandlerResult | Awaitable[HandlerResult]:
        """Handle what is allowed of a request."""
        guard = NEEDS[request.api_key].guard
        if guard is None:
            return self._handle(request, caller)
        log = self.broker.authorizer_log
        gate = Gate(
            actor=Actor(caller.principal, caller.host),
            table=acls,
            view=self.broker.view,
            creates_topics=self.broker.settings.static.auto_create_topics,
            notes_allowed=log.takes_allowed,
        )
        if _names_many(request):
            return self._guard_in_thread(guard, gate, request, caller)
        try:
            outcome = guard(gate, request.body, request.api_version)
        finally:  # also if the refusal of a request without an answer closes the connection
            self._log_decisions(gate, request, caller)
        return self._handle_passed(outcome, request, caller)

    async def _guard_in_thread(
        self, guard: Guard, gate: Gate, request: Request[Message], caller: Caller
    ) -> HandlerResult:
        """Guard a request that names so many resources that others would wait for the decisions.

        A decision by rules that have changed meanwhile would get into a fetch session, which nobody would end.
        """
        decide = partial(guard, gate, request.body, request.api_version)
        try:
            for _ in range(GUARD_ATTEMPTS):
                version = gate.table.version
                outcome = await trio.to_thread.run_sync(decide, limiter=self.guards)
                if gate.table.version == version:
                    break
                gate.decisions.clear()
            else:
                outcome = decide()
        finally:
            self._log_decisions(gate, request, caller)
        if isinstance(outcome, Refused):
            return LargeAnswer(outcome.answer)
        result = self._handle_passed(outcome, request, caller)
        return await result if isinstance(result, Awaitable) else result

    def _log_decisions(self, gate: Gate, request: Request[Message], caller: Caller) -> None:
        if gate.decisions:
            log = self.broker.authorizer_log
            log.write(gate.actor, caller.listener, caller.client_id, request.api_key, gate.decisions)

    def _handle_passed(
        self, outcome: Passage | Refused, request: Request[Message], caller: Caller
    ) -> HandlerResult | Awaitable[HandlerResult]:
        if isinstance(outcome, Refused):
            return outcome.answer
        handled = self._handle(request._replace(body=outcome.body), caller)
        return handled if outcome.merge is None else answered_with(handled, outcome.merge, self.guards)

    def _handle(self, request: Request[Message], caller: Caller) -> HandlerResult | Awaitable[HandlerResult]:
        """Handle a request. Leaders that its answer names have the addresses of the caller's listener."""
        outcome = self._handle_within_quotas(request, caller)
        if caller.listener == self.broker.inter_broker_listener or request.api_key not in NAMES_LEADERS:
            return outcome
        return answered_with(outcome, partial(with_addresses, self.broker.view, caller.listener))

    def _handle_within_quotas(
        self, request: Request[Message], caller: Caller
    ) -> HandlerResult | Awaitable[HandlerResult]:
        handler, quotas = HANDLERS[request.api_key], self.broker.quotas
        slicing = SLICINGS.get(request.api_key)
        if slicing is not None and slicing.is_large(request.body):
            return handle_in_slices(
                slicing, request.body, lambda body: handler(self.broker, body, request.api_version, caller)
            )
        if quotas.table.is_empty:
            return handler(self.broker, request.body, request.api_version, caller)
        client = caller.principal, caller.client_id or ""
        if not is_limited(quotas, request.api_key, client) or self._is_of_broker(request.body):
            return handler(self.broker, request.body, request.api_version, caller)
        return handle_within(quotas, client, request, self._guarded_handling(handler, request, caller))

    def _guarded_handling(self, handler: ApiHandler, request: Request[Message], caller: Caller) -> Callable[[Any], Any]:
        """Return the handling of a guarded request, which may have to wait for its quota: rules must be the same then.

        A fetch session that begins after a change of rules would go on by the old ones.
        """
        acls = self.broker.acls
        version = None if acls is None else acls.version

        def handle(body: Message) -> HandlerResult | Awaitable[HandlerResult]:
            if acls is not None and acls.version != version:
                raise ProtocolError("ACLs have changed while the request waited for its quota")
            return handler(self.broker, body, request.api_version, caller)

        return handle

    def _is_of_broker(self, body: Message) -> bool:
        """True if another live broker sends the request as a follower. Any other replica id stays under the quota."""
        return isinstance(body, FetchRequest) and self.broker.is_other_broker(*replica_of(body))


def _names_many(request: Request[Message]) -> bool:
    """True if a request may name so many resources that a thread should guard it."""
    if isinstance(request.body, ProduceRequest):
        return len(request.body.topic_data) > GUARDED_TOPICS_AT_ONCE
    return request.size_bytes > GUARDED_AT_ONCE_BYTES
