"""Decisions about requests, as the audit log takes them."""

from collections.abc import Callable

from pipeline.broker.security.acl_table import Actor
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType

NoteDecision = Callable[[Actor, AclOperation, AclResourceType, str, bool], None]
"""Takes a decision: who, what, the type and name of the resource, and whether it is allowed."""


def note_nothing(
    _actor: Actor, _operation: AclOperation, _resource_type: AclResourceType, _name: str, _is_allowed: bool
) -> None:
    """Take a decision that is of no interest."""
