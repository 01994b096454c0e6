"""ApiVersions (18), versions 0 to 4: the api keys and versions that the server serves.

Version 1 adds the throttle time, 3 names the client (KIP-511) and the features (KIP-584), 4 lets a feature range start
at 0. The response header stays version 0 for ever, so that any client can read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(Message):
    """A question for the api keys of the server; names the client."""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    client_software_name: Annotated[String, Wire(since=3, ignorable=True)] = ""
    client_software_version: Annotated[String, Wire(since=3, ignorable=True)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """An api key and the versions of it that the server serves."""

    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeatureKey:
    """A feature of the server and its version range."""

    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeatureKey:
    """A feature that the whole cluster has agreed on."""

    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(Message):
    """Keys, versions and features."""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    error_code: Int16 = 0
    api_keys: Sequence[ApiVersion] = ()
    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], Wire(since=3, tag=0, ignorable=True)] = ()
    finalized_features_epoch: Annotated[Int64, Wire(since=3, tag=1, ignorable=True)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], Wire(since=3, tag=2, ignorable=True)] = ()
    zk_migration_ready: Annotated[Bool, Wire(since=3, tag=3, ignorable=True)] = False
