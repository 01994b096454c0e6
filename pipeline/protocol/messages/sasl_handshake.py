"""SaslHandshake (17), versions 0 to 1: the SASL mechanism of a connection (KIP-43).

After version 0 the client's tokens follow bare, each behind its size; after version 1 as SaslAuthenticate (KIP-152).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest(Message):
    """The mechanism that the client has chosen."""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    mechanism: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse(Message):
    """The mechanisms that the broker offers."""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    error_code: Int16 = 0
    mechanisms: Sequence[String] = ()
