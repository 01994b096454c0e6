"""ACLs of znodes as Kafka's brokers set them: who may read and change what. Pure.

The user that creates a znode may do everything with it. Everybody may read it, unless it holds secrets. Znodes that
other programs write stay open. Source: Kafka's `ZkData.defaultAcls`, `SecureRootPaths` and `SensitiveRootPaths`.
"""

from enum import Enum

from pipeline.coordination.acl_znodes import LITERAL_ACLS, LITERAL_CHANGES, PREFIXED_CHANGES
from pipeline.coordination.cluster_znodes import STATE_CHANGES, ControllerEpoch, ControllerNode
from pipeline.coordination.quota_znodes import CONFIG_USERS
from pipeline.coordination.znodes import BROKER_CONFIGS, ProducerIdBlock


class ZnodeAcl(Enum):
    """The ACL of a znode. "Creator" stands for every identity of the client that creates it or sets the ACL."""

    OPEN = "everybody may do everything"
    READABLE = "the creator may do everything, everybody may read"
    PRIVATE = "the creator may do everything, nobody else may do anything"


SENSITIVE_ROOTS = (CONFIG_USERS, BROKER_CONFIGS, "/delegation_token/tokens")
"""Znodes that hold, or whose descendants hold, SCRAM credentials, passwords in settings of brokers, and tokens."""
CONSUMERS_ROOT = "/consumers"
MIRRORS_ROOT = "/mirrors"
OPEN_ROOTS = (CONSUMERS_ROOT, MIRRORS_ROOT)
"""Znodes below which consumers of before Kafka 0.9 and mirrors write, as users of their own."""
SECURE_ROOTS = (
    "/admin",
    "/brokers",
    "/cluster",
    "/config",
    ControllerNode.PATH,
    ControllerEpoch.PATH,
    STATE_CHANGES,
    ProducerIdBlock.PATH,
    "/log_dir_event_notification",
    "/delegation_token",
    LITERAL_ACLS,
    LITERAL_CHANGES,
    "/kafka-acl-extended",
    PREFIXED_CHANGES,
)
"""Znodes that belong to brokers alone, with all their descendants."""


def default_acl(path: str, *, is_secured: bool) -> ZnodeAcl:
    """Return the ACL of a znode, whose path has no chroot."""
    if not is_secured or path in OPEN_ROOTS:
        return ZnodeAcl.OPEN
    if any(path == root or path.startswith(f"{root}/") for root in SENSITIVE_ROOTS):
        return ZnodeAcl.PRIVATE
    return ZnodeAcl.READABLE
