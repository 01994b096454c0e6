"""Reactions of a member to the coordinator's error codes, as one table. Pure."""

from enum import Enum, auto

from pipeline.protocol.errors import ErrorCode


class MemberReaction(Enum):
    """Reaction of a member to an answer of its coordinator."""

    GO_ON = auto()
    """The request was carried out."""
    RETRY = auto()
    """Ask the same coordinator again later."""
    FIND = auto()
    """Find the coordinator, and ask again."""
    REJOIN = auto()
    """Join again as the same member: the group rebalances."""
    TAKE_ID = auto()
    """Join again with the member id of the answer (KIP-394)."""
    NEW_GENERATION = auto()
    """Give all partitions up as lost, and join again as the same member: the group went on without it."""
    NEW_MEMBER = auto()
    """Give all partitions up as lost, and join as a new member: the coordinator has removed the old one."""
    FAIL = auto()
    """End: no retry would help, or another process has taken the member's place (FENCED_INSTANCE_ID)."""


_REACTIONS = {
    ErrorCode.NONE: MemberReaction.GO_ON,
    ErrorCode.NOT_COORDINATOR: MemberReaction.FIND,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: MemberReaction.FIND,
    ErrorCode.REBALANCE_IN_PROGRESS: MemberReaction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: MemberReaction.TAKE_ID,
    ErrorCode.ILLEGAL_GENERATION: MemberReaction.NEW_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID: MemberReaction.NEW_MEMBER,
}


def reaction_to(code: ErrorCode) -> MemberReaction:
    """Return the reaction to an error code: for other retriable codes a retry, for all others the end."""
    return _REACTIONS.get(code) or (MemberReaction.RETRY if code.retriable else MemberReaction.FAIL)
