"""SaslAuthenticate (36), versions 0 to 2: one step of an authentication (KIP-152), or of a renewed one (KIP-368)."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bytes, Int16, Int64, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest(Message):
    """A token of the client, as its mechanism defines it."""

    API_KEY: ClassVar[int] = 36
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    auth_bytes: Bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse(Message):
    """A token of the broker."""

    API_KEY: ClassVar[int] = 36
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    error_code: Int16 = 0
    error_message: String | None = None
    auth_bytes: Bytes = field(default=b"", repr=False)
    session_lifetime_ms: Annotated[Int64, Wire(since=1, ignorable=True)] = 0
    """Time in ms after which the client has to authenticate again; 0: never."""
