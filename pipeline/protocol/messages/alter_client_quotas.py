"""AlterClientQuotas (49), versions 0 to 1: set and remove quotas of users and client ids (KIP-546)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.messages.describe_client_quotas import EntityData
from pipeline.protocol.schema import Bool, Float64, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class OpData:
    """A quota to set or remove."""

    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryData:
    """An entity, and the changes of its quotas."""

    entity: Sequence[EntityData] = ()
    ops: Sequence[OpData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequest(Message):
    """Quotas to set and remove."""

    API_KEY: ClassVar[int] = 49
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    entries: Sequence[EntryData] = ()
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredEntryData:
    """An entity, and the result of its changes."""

    error_code: Int16 = 0
    error_message: String | None = None
    entity: Sequence[EntityData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasResponse(Message):
    """Results by entity."""

    API_KEY: ClassVar[int] = 49
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    throttle_time_ms: Int32 = 0
    entries: Sequence[AlteredEntryData] = ()
