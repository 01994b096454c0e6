"""DescribeUserScramCredentials (50), version 0: the users with SCRAM credentials (KIP-554)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class UserName:
    """A user."""

    name: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest(Message):
    """The users; null or none for all."""

    API_KEY: ClassVar[int] = 50
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    users: Sequence[UserName] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    """A credential, without its secret. Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    mechanism: Int8 = 0
    iterations: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    """A user and their credentials."""

    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None
    credential_infos: Sequence[CredentialInfo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse(Message):
    """The users that were found."""

    API_KEY: ClassVar[int] = 50
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Sequence[DescribeUserScramCredentialsResult] = ()
