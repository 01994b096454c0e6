"""The members of a group, their protocols and their leader. Pure.

Metadata of members are not parsed, except for the topics that consumers subscribe to.
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
"""Approximate memory of a member, of a member id that was given out (with its group), and of a protocol."""
MAX_NAMES = 100_000
"""Topic names parsed at most for one group, some 20 ms of work: far more than real subscriptions hold."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `protocols` are in its order of preference, each with metadata for the leader."""

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
    """End of the session; None while the member waits for an answer and sends no heartbeats."""
    timer_ms: int | None = None
    """Time of the session's timer: the deadline or before."""

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the member."""
        names = names_bytes(self.client_id, self.group_instance_id)
        return MEMBER_BYTES + names + len(self.assignment) + protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata of this protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def value(self, protocol: str | None, assignment: bytes) -> MemberMetadataValue:
        """Return the member's value for the journal."""
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
    """Return the approximate memory of names."""
    return sum(sys.getsizeof(name) for name in names if name is not None)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return the approximate memory of protocols and their metadata."""
    return sum(len(name) + len(metadata) + PROTOCOL_BYTES for name, metadata in protocols)


def member_of(value: MemberMetadataValue, protocol: str | None) -> Member:
    """Return the member of a value in the journal."""
    return Member(
        id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        protocols=((protocol or "", value.subscription),),
        assignment=value.assignment,
        is_new=False,
    )


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return all subscribed topics; None if a subscription is unreadable, or they name more than MAX_NAMES."""
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
    """Return the topics, which follow the version in all versions; None if they are unreadable, or more than `most`."""
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
    """The members of a group, the oldest first.

    Invariants: `static` names exactly the members that have an instance id; the leader, if there is one, is a member;
    `pending` ids were given out and not used yet (KIP-394), none of them is a member.
    """

    members: dict[MemberId, Member] = field(default_factory=dict)
    static: dict[str, MemberId] = field(default_factory=dict)
    pending: set[MemberId] = field(default_factory=set)
    leader: MemberId | None = None
    awaiting_join: int = 0
    """Number of members whose join waits."""
    _member_bytes: int = 0
    _supporters: Counter[str] = field(default_factory=Counter)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the members and of ids that were given out."""
        return self._member_bytes + PENDING_BYTES * len(self.pending)

    def add(self, member: Member) -> None:
        """Add a new member. The first one becomes the leader."""
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
        """Remove a member. If it was the leader, the oldest other member becomes the leader."""
        del self.members[member.id]
        self._forget_support(member)
        self._member_bytes -= member.held_bytes
        self.awaiting_join -= member.join is not None
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, new_id: MemberId) -> None:
        """Give a static member another id. A leader stays leader."""
        if member.group_instance_id is None:
            raise ValueError(f"{member.id} is not a static member")
        del self.members[member.id]
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id
        self.members[new_id] = member
        self.static[member.group_instance_id] = new_id

    def set_protocols(self, member: Member, protocols: Sequence[tuple[str, bytes]]) -> None:
        """Set the protocols that the member supports."""
        self._forget_support(member)
        self._member_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._supporters.update(_names(member))

    def set_assignment(self, member: Member, assignment: bytes) -> None:
        """Set the assignment of a member."""
        self._member_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join(self, member: Member, waiter: WaiterId | None) -> None:
        """Set the waiting join of a member; None once it is answered."""
        self.awaiting_join += (waiter is not None) - (member.join is not None)
        member.join = waiter

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined again the leader. Returns False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.join is None:
            joined = next((member.id for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def supports(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """True if all members support one of these protocols."""
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the next generation's protocol: each member votes for its first one that all members support."""
        shared = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in shared) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _forget_support(self, member: Member) -> None:
        """Subtract the member's support. Names without support are dropped: clients may invent new ones each time."""
        for name in _names(member):
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    @property
    def has_all_joined(self) -> bool:
        """True if all members have joined again, and all clients that got an id."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def session_timeout_ms(self) -> int:
        """The shortest session timeout of all members."""
        return min((member.session_timeout_ms for member in self.members.values()), default=0)


def _names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}
