"""DescribeClientQuotas (48), versions 0 to 1: quotas of users and client ids (KIP-546)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from pipeline.protocol.schema import Bool, Float64, Int8, Int16, Int32, Message, String


class MatchType(IntEnum):
    """The way in which the name of an entity has to match."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentData:
    """A part of a filter: an entity type and the names of it that match."""

    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasRequest(Message):
    """A filter for entities with quotas."""

    API_KEY: ClassVar[int] = 48
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    components: Sequence[ComponentData] = ()
    strict: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    """A user, client id or ip; null stands for the default."""

    entity_type: String = ""
    entity_name: String | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueData:
    """A quota."""

    key: String = ""
    value: Float64 = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryData:
    """An entity and its quotas."""

    entity: Sequence[EntityData] = ()
    values: Sequence[ValueData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponse(Message):
    """The quotas that match."""

    API_KEY: ClassVar[int] = 48
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: Sequence[EntryData] | None = ()
