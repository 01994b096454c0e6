"""DeleteTopics (20), versions 1 to 6: 5 may answer THROTTLING_QUOTA_EXCEEDED (KIP-599), 6 takes ids (KIP-516)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Int16, Int32, Message, String, Uuid, Wire

FIRST_VERSION_OF_TOPIC_IDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicState:
    """A topic to delete, by id or by name."""

    name: String | None = None
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest(Message):
    """Topics to delete: `topic_names` until version 5, `topics` from then on."""

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    topics: Annotated[Sequence[DeleteTopicState], Wire(since=6)] = ()
    topic_names: Annotated[Sequence[String], Wire(until=5, ignorable=True)] = ()
    timeout_ms: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopicResult:
    """The result for one topic."""

    name: Annotated[String | None, Wire(nullable_since=6)] = ""
    topic_id: Annotated[Uuid, Wire(since=6, ignorable=True)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, Wire(since=5, ignorable=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse(Message):
    """Results by topic."""

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Int32 = 0
    responses: Sequence[DeletableTopicResult] = ()
