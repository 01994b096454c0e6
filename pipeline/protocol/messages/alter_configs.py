"""AlterConfigs (33), versions 0 to 2: set all settings of a topic or broker; others become defaults (KIP-133)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Bool, Int8, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """A setting and its new value."""

    name: String = ""
    value: String | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    """A topic or broker."""

    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[AlterableConfig] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest(Message):
    """Resources and all their settings."""

    API_KEY: ClassVar[int] = 33
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    resources: Sequence[AlterConfigsResource] = ()
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    """The result for a topic or broker."""

    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse(Message):
    """Results by topic or broker."""

    API_KEY: ClassVar[int] = 33
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()
