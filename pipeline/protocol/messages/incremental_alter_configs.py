"""IncrementalAlterConfigs (44), versions 0 to 1: change single settings of topics and brokers (KIP-339)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from pipeline.protocol.messages.alter_configs import AlterConfigsResourceResponse
from pipeline.protocol.schema import Bool, Int8, Int32, Message, String


class OperationType(IntEnum):
    """The change of a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """A setting and its change."""

    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    """A topic or broker."""

    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[AlterableConfig] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest(Message):
    """Settings to change."""

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    resources: Sequence[AlterConfigsResource] = ()
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse(Message):
    """Results by topic or broker."""

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()
