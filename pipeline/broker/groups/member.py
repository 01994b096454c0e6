"""The members of a group and what they agree on. Pure.

What a protocol says between its clients stays unopened, but for the topics that consumers subscribe to.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.broker.groups.events import WaiterId
from pipeline.broker.groups.model import MemberId, MemberMetadataValue

INT16_BYTES = 2
INT32_BYTES = 4
MEMBER_BYTES = 2000
PENDING_BYTES = 2000
PROTOCOL_BYTES = 200
"""About what a member, an id that was given out (with the group it may be alone in) and a protocol take in memory."""
MAX_NAMES = 100_000
"""Names of topics that are read of all members of a group, some 20 ms of work. No real subscription comes near."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `protocols` in the order of its preference, each with what the member says to the leader."""

    id: MemberId
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Sequence[tuple[str, bytes]]
    assignment: bytes = b""
    is_new: bool = True
    join: WaiterId | None = None
    sync: WaiterId | None = None
    deadline_ms: int | None = None
    """When it is given up; None while its silence is the coordinator's own doing."""
    timer_ms: int | None = None
    """The timer that is set for it, at its deadline or before."""

    @property
    def held_bytes(self) -> int:
        """About what the member takes in memory."""
        names = names_bytes(self.client_id, self.group_instance_id)
        return MEMBER_BYTES + names + len(self.assignment) + protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member says under this protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def value(self, protocol: str | None, assignment: bytes) -> MemberMetadataValue:
        """The member for the journal."""
        return MemberMetadataValue(
            member_id=self.id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


def names_bytes(*names: str | None) -> int:
    """About what names take in memory that clients made up."""
    return sum(sys.getsizeof(name) for name in names if name is not None)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """About what protocols take in memory, with what a member says under each."""
    return sum(len(name) + len(metadata) + PROTOCOL_BYTES for name, metadata in protocols)


def member_of(value: MemberMetadataValue, protocol: str | None) -> Member:
    """A member as the journal had it. Old records have one timeout for both."""
    rebalance_timeout_ms = value.rebalance_timeout_ms
    return Member(
        id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        protocols=((protocol or "", value.subscription),),
        assignment=value.assignment,
        is_new=False,
    )


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that any of the consumers subscribes to; None if one of them writes in a way of its own, or they
    name more than `MAX_NAMES`.
    """
    topics: set[str] = set()
    left = MAX_NAMES
    for subscription in subscriptions:
        found = _topics_of(subscription, left)
        if found is None:
            return None
        left -= len(found)
        topics.update(found)
    return frozenset(topics)


def _topics_of(subscription: bytes, most: int) -> list[str] | None:
    """Topics of a consumer's subscription, whose beginning is the same in all versions: version, then topics. None if
    they are more than so many.
    """
    position = INT16_BYTES
    count = int.from_bytes(subscription[position : position + INT32_BYTES], signed=True)
    position += INT32_BYTES
    if not 0 <= count <= most:
        return None
    topics = []
    for _ in range(count):
        length = int.from_bytes(subscription[position : position + INT16_BYTES], signed=True)
        position += INT16_BYTES
        name = subscription[position : position + max(length, 0)]
        position += length
        if length < 0 or position > len(subscription):
            return None
        try:
            topics.append(name.decode())
        except UnicodeDecodeError:
            return None
    return topics if len(subscription) >= position else None


@dataclass(slots=True)
class Roster:
    """Who is in a group, in the order of their coming.

    Invariants: `static` names exactly the members that have an instance id; the leader, if there is one, is a member;
    `pending` ids were given out and have not come back (KIP-394), none of them is a member.
    """

    members: dict[MemberId, Member] = field(default_factory=dict)
    static: dict[str, MemberId] = field(default_factory=dict)
    pending: set[MemberId] = field(default_factory=set)
    leader: MemberId | None = None
    awaiting_join: int = 0
    """How many members wait for the answer to their join."""
    _member_bytes: int = 0
    _supporters: Counter[str] = field(default_factory=Counter)

    @property
    def held_bytes(self) -> int:
        """About what members, and ids that were given out, take in memory."""
        return self._member_bytes + PENDING_BYTES * len(self.pending)

    def add(self, member: Member) -> None:
        """A member that is new. The first one leads."""
        self.members[member.id] = member
        self.pending.discard(member.id)
        self._supporters.update(_names(member))
        self._member_bytes += member.held_bytes
        self.awaiting_join += member.join is not None
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.id
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: Member) -> None:
        """A member goes; if it led, the oldest of the others does."""
        del self.members[member.id]
        self._forget_support(member)
        self._member_bytes -= member.held_bytes
        self.awaiting_join -= member.join is not None
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, new_id: MemberId) -> None:
        """A static member gets another id (and stays leader, if it was)."""
        if member.group_instance_id is None:
            raise ValueError(f"{member.id} is not a static member")
        del self.members[member.id]
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id
        self.members[new_id] = member
        self.static[member.group_instance_id] = new_id

    def set_protocols(self, member: Member, protocols: Sequence[tuple[str, bytes]]) -> None:
        """What the member supports from now on."""
        self._forget_support(member)
        self._member_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._supporters.update(_names(member))

    def set_assignment(self, member: Member, assignment: bytes) -> None:
        """Set the member's assignment, and count its bytes."""
        self._member_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join(self, member: Member, waiter: WaiterId | None) -> None:
        """The member waits (or waits no longer) for the answer to a join."""
        self.awaiting_join += (waiter is not None) - (member.join is not None)
        member.join = waiter

    def elect_joined_leader(self) -> bool:
        """See to it that the leader is a member that has come back. False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.join is None:
            joined = next((member.id for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def supports(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol of the next generation: each member votes for the first of its own that all support."""
        shared = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in shared) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _forget_support(self, member: Member) -> None:
        """Count the member's protocols out. A name without supporters goes: members may invent new names each time."""
        for name in _names(member):
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    @property
    def has_all_joined(self) -> bool:
        """Whether everybody who could come back has done so."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member wants to be waited for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def session_timeout_ms(self) -> int:
        """The shortest after which a silent member is given up."""
        return min((member.session_timeout_ms for member in self.members.values()), default=0)


def _names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}
