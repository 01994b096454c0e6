"""AlterUserScramCredentials (51), version 0: set and remove SCRAM credentials (KIP-554). Passwords are never sent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pipeline.protocol.schema import Bytes, Int8, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialDeletion:
    """A credential to remove. Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    name: String = ""
    mechanism: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialUpsertion:
    """A credential to set: the password, hashed by the client with this salt and so many iterations."""

    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = field(default=b"", repr=False)
    salted_password: Bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequest(Message):
    """Credentials to remove and to set."""

    API_KEY: ClassVar[int] = 51
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    deletions: Sequence[ScramCredentialDeletion] = ()
    upsertions: Sequence[ScramCredentialUpsertion] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResult:
    """A user, and the result of the changes."""

    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponse(Message):
    """Results by user."""

    API_KEY: ClassVar[int] = 51
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    results: Sequence[AlterUserScramCredentialsResult] = ()
