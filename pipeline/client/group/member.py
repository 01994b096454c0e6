"""The member: joins its group, takes its assignment, keeps its session alive, leaves (classic protocol, KIP-62, 394).

Owns member id and generation, and says what has happened to them; what becomes of the partitions is decided by
`group_consumer.py`.

Invariants:
- An answer counts only for the member id and generation of its request.
- `holds` is true only while no other member can have a partition of the last assignment (`lease.py`).
- `is_lost` stays true from the moment at which the coordinator has disowned the member until `begin_anew`.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import Random

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.consumer.consumer_protocol import (
    CONSUMER,
    NO_GENERATION,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from pipeline.client.group.assignors.members import Assigned, JoinedMember
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.coordinator_link import CoordinatorLink
from pipeline.client.group.lease import Lease
from pipeline.client.group.reactions import MemberReaction, reaction_to
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError, ProtocolError
from pipeline.model import TopicPartition
from pipeline.net.signals import Signal, Wakeup
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from pipeline.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

logger = get_logger(__name__)

_JOIN_MARGIN_S = 5.0
"""Time beyond the rebalance timeout that a coordinator has for the answer to a join."""

Assign = Callable[[str, Sequence[JoinedMember]], Awaitable[Assigned]]
"""Function of the leader, from the name of the assignor and all members to their partitions."""


class ClassicMember:
    """A member of a group, as its coordinator knows it."""

    def __init__(self, cluster: Cluster, config: GroupConfig, link: CoordinatorLink, rng: Random) -> None:
        self._rng = rng
        self._cluster = cluster
        self._config = config
        self._link = link
        self._lease = Lease(config.session_timeout_ms / 1000, config.max_poll_interval_ms / 1000)
        self._failures = 0
        self.id = ""
        self.generation = NO_GENERATION
        self.is_leader = False
        self.is_joining = False
        self.is_lost = False
        self.must_rejoin = False
        self.is_suspended = False
        """True if no heartbeats are sent: a reader takes too long, and others are to have its partitions."""
        self.failure: PipelineError | None = None
        self.settled = Signal()
        """Notified when a join has ended."""
        self.news = Wakeup()
        """Set when `is_lost`, `must_rejoin` or `failure` has changed."""

    @property
    def is_static(self) -> bool:
        """True if the member has an instance id (KIP-345)."""
        return self._config.group_instance_id is not None

    def holds(self) -> bool:
        """Return True if no other member can have a partition of the last assignment."""
        return self.generation != NO_GENERATION and self._lease.holds(trio.current_time())

    def ask_to_rejoin(self, reason: str) -> None:
        """Have the member join again."""
        if not self.must_rejoin:
            logger.info("group_rejoin_wanted", group=self._config.group_id, reason=reason)
        self.must_rejoin = True
        self.news.set()

    def begin_anew(self) -> None:
        """Take note that the partitions of a lost member were given up."""
        self.is_lost = False
        self.must_rejoin = True
        self.news.set()

    def react(self, code: int, about: str) -> MemberReaction:
        """Take note of an error code that the coordinator answered to this member and generation."""
        error = ErrorCode.of(code)
        reaction = reaction_to(error)
        if reaction is MemberReaction.FIND:
            self._link.forget()
        elif reaction is MemberReaction.REJOIN:
            self.ask_to_rejoin(f"{about}: {error.name}")
        elif reaction in (MemberReaction.NEW_GENERATION, MemberReaction.NEW_MEMBER):
            self.lose(f"{about}: {error.name}", keeps_id=reaction is MemberReaction.NEW_GENERATION)
        elif reaction is MemberReaction.FAIL:
            self.fail(KafkaError(code, f"group {self._config.group_id}: {about}: {error.message}"))
        return reaction

    def fail(self, error: PipelineError) -> None:
        """End the member with an error that no retry helps against."""
        if self.failure is None:
            logger.error("group_member_failed", group=self._config.group_id, error=str(error))
            self.failure = error
            self._end_generation()
        self.news.set()

    def lose(self, reason: str, *, keeps_id: bool = False) -> None:
        """Take note that others may have the partitions by now."""
        logger.warning("group_membership_lost", group=self._config.group_id, member=self.id, reason=reason)
        self._end_generation()
        if not keeps_id:
            self.id = ""
        self.is_lost = True
        self.news.set()

    def _end_generation(self) -> None:
        self.generation = NO_GENERATION
        self.is_leader = False
        self._lease.end()

    async def rejoin(
        self, protocols: Sequence[JoinGroupRequestProtocol], assign: Assign
    ) -> tuple[TopicPartition, ...] | None:
        """Join once, and return the partitions of the new generation.

        None: the attempt failed, for a reason that has been waited for; look at the member's state before another one.
        """
        self.must_rejoin = False
        self.is_joining = True
        try:
            reaction, assigned = await self._join_and_sync(protocols, assign)
        except (*UNREACHABLE, KafkaError) as error:
            reaction, assigned = MemberReaction.RETRY, None
            if isinstance(error, KafkaError) and reaction_to(error.code) is MemberReaction.FAIL:
                self.fail(error)
            logger.warning("group_join_failed", group=self._config.group_id, error=str(error))
        finally:
            self.is_joining = False
            self.settled.notify()
        if reaction in (MemberReaction.RETRY, MemberReaction.FIND):
            self._failures += 1
            await trio.sleep(self._rng.random() * self._cluster.config.retry_backoff_ms / 1000)  # not all at once
            await self._cluster.back_off(self._failures, float("inf"))
        else:
            self._failures = 0
        return assigned

    async def _join_and_sync(
        self, protocols: Sequence[JoinGroupRequestProtocol], assign: Assign
    ) -> tuple[MemberReaction, tuple[TopicPartition, ...] | None]:
        joined = await self._join(protocols)
        if joined is None:
            return MemberReaction.FIND, None
        if joined.error_code != ErrorCode.NONE:
            reaction = self.react(joined.error_code, "join")
            if reaction is MemberReaction.TAKE_ID:
                self.id = joined.member_id
            return reaction, None
        self.id, self.generation = joined.member_id, joined.generation_id
        self.is_leader = joined.leader == joined.member_id
        strategy = joined.protocol_name or ""
        assignments: Sequence[SyncGroupRequestAssignment] = ()
        if self.is_leader:
            assigned = await assign(strategy, [self._joined_member(member) for member in joined.members])
            if not joined.skip_assignment:  # a static leader that comes back looks after the group's topics again
                assignments = [
                    SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
                    for member, partitions in assigned.items()
                ]
        sent_at = trio.current_time()
        synced = await self._sync(strategy, assignments)
        if synced is None:
            return MemberReaction.FIND, None
        if synced.error_code != ErrorCode.NONE:
            return self.react(synced.error_code, "sync"), None
        try:
            partitions = decode_assignment(bytes(synced.assignment))
        except ProtocolError as error:
            reason = f"group {self._config.group_id}: its leader sent an assignment that cannot be read: {error}"
            self.fail(ProtocolError(reason))
            return MemberReaction.FAIL, None
        self._lease.renew(sent_at)
        logger.info(
            "group_joined", group=self._config.group_id, member=self.id, generation=self.generation, strategy=strategy
        )
        return MemberReaction.GO_ON, partitions

    def _joined_member(self, member: JoinGroupResponseMember) -> JoinedMember:
        """Return a member as the leader sees it. One whose subscription cannot be read gets no partitions."""
        try:
            subscription = decode_subscription(bytes(member.metadata))
        except ProtocolError as error:
            logger.error(
                "subscription_unreadable", group=self._config.group_id, member=member.member_id, error=str(error)
            )
            subscription = MemberSubscription(topics=())
        return JoinedMember(id=member.member_id, instance_id=member.group_instance_id, subscription=subscription)

    async def _join(self, protocols: Sequence[JoinGroupRequestProtocol]) -> JoinGroupResponse | None:
        config = self._config
        request = JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=self.id,
            group_instance_id=config.group_instance_id,
            protocol_type=CONSUMER,
            protocols=protocols,
        )
        timeout_s = config.max_poll_interval_ms / 1000 + _JOIN_MARGIN_S
        timeout_s = max(timeout_s, self._cluster.config.request_timeout_ms / 1000)
        response: JoinGroupResponse | None = await self._link.ask_while_coordinator(
            request, kind="joins", timeout_s=timeout_s
        )
        return response

    async def _sync(self, strategy: str, assignments: Sequence[SyncGroupRequestAssignment]) -> SyncGroupResponse | None:
        config = self._config
        request = SyncGroupRequest(
            group_id=config.group_id,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=config.group_instance_id,
            protocol_type=CONSUMER,
            protocol_name=strategy,
            assignments=assignments,
        )
        timeout_s = config.max_poll_interval_ms / 1000 + _JOIN_MARGIN_S
        response: SyncGroupResponse | None = await self._link.ask_while_coordinator(
            request, kind="joins", timeout_s=timeout_s
        )
        return response

    async def keep_alive(self) -> None:
        """Send heartbeats while there is a generation, until cancelled."""
        interval_s = self._config.heartbeat_interval_ms / 1000
        failures = 0
        next_at = trio.current_time()
        while True:
            await trio.sleep_until(next_at)
            next_at = trio.current_time() + interval_s
            if self.generation == NO_GENERATION or self.is_suspended:
                failures = 0
                continue
            try:
                is_answered = await self._beat()
            except (*UNREACHABLE, KafkaError) as error:
                logger.warning("heartbeat_failed", group=self._config.group_id, error=str(error))
                is_answered = False
            if is_answered:
                failures = 0
            else:
                failures += 1
                await self._cluster.back_off(failures, float("inf"))
                next_at = min(next_at, trio.current_time())

    async def _beat(self) -> bool:
        """Send a heartbeat. Return True if another is due after the interval only."""
        identity = self.id, self.generation
        request = HeartbeatRequest(
            group_id=self._config.group_id,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self._config.group_instance_id,
        )
        sent_at = trio.current_time()
        timeout_s = max(self._config.heartbeat_interval_ms, self._config.session_timeout_ms / 3) / 1000
        response: HeartbeatResponse = await self._link.ask(request, kind="heartbeats", timeout_s=timeout_s)
        if identity != (self.id, self.generation):
            return True
        code = ErrorCode.of(response.error_code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._lease.renew(sent_at, is_settled=code is ErrorCode.NONE)
        if self.is_joining and reaction_to(code) not in (MemberReaction.FIND, MemberReaction.FAIL):
            return True  # the generation may have passed already, as the answer to the join will say
        return self.react(code, "heartbeat") not in (MemberReaction.RETRY, MemberReaction.FIND)

    async def leave(self, reason: str, timeout_s: float) -> None:
        """Leave the group, so that others get the partitions at once. Static members are only waited for: they stay.

        A coordinator that does not answer removes the member when its session ends.
        """
        identity = self.id
        self._end_generation()
        if not identity or self.is_static:
            return
        leaving = MemberIdentity(member_id=identity, reason=reason)
        group = self._config.group_id
        try:
            try:
                request = LeaveGroupRequest(group_id=group, members=[leaving])
                await self._link.ask(request, kind="heartbeats", timeout_s=timeout_s)
            except KafkaError:  # a broker of before version 3
                request = LeaveGroupRequest(group_id=group, member_id=identity)
                await self._link.ask(request, kind="heartbeats", timeout_s=timeout_s)
        except (*UNREACHABLE, KafkaError) as error:
            logger.warning("group_leave_failed", group=group, member=identity, error=str(error))
        else:
            logger.info("group_left", group=group, member=identity, reason=reason)
        self.id = ""
