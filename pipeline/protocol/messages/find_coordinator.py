"""FindCoordinator (10), versions 0 to 6: the broker that coordinates a group (or a transactional id).

Version 1 adds the key type, 2 throttles after answering (KIP-219), 4 asks for many keys at once (KIP-699), 5 is for
transactions (KIP-890), 6 for share groups (KIP-932).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String, Wire

FIRST_VERSION_OF_MANY_KEYS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(Message):
    """Groups or transactional ids to look up."""

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    key: Annotated[String, Wire(until=3)] = ""
    key_type: Annotated[Int8, Wire(since=1)] = 0
    coordinator_keys: Annotated[Sequence[String], Wire(since=4)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The broker that coordinates one key."""

    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse(Message):
    """Coordinators by key."""

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    error_code: Annotated[Int16, Wire(until=3, ignorable=True)] = 0
    error_message: Annotated[String | None, Wire(since=1, until=3, ignorable=True)] = None
    node_id: Annotated[Int32, Wire(until=3, ignorable=True)] = 0
    host: Annotated[String, Wire(until=3, ignorable=True)] = ""
    port: Annotated[Int32, Wire(until=3, ignorable=True)] = 0
    coordinators: Annotated[Sequence[Coordinator], Wire(since=4, ignorable=True)] = ()
