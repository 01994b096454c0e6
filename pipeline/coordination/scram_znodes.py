"""SCRAM credentials in the znodes of users, in Kafka's text. Pure.

`/config/users/<user>` holds, beside quotas, `SCRAM-SHA-256` and `SCRAM-SHA-512` with the value
`salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=NUMBER`. A password cannot be found from it but by trying.
Source: KIP-84, RFC 5802, Kafka's ScramCredentialUtils.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from pipeline.coordination.quota_znodes import CONFIG_USERS, encode_name
from pipeline.errors import CoordinationError

MIN_ITERATIONS = 4096
"""Least iterations of a credential (RFC 7677)."""
MAX_ITERATIONS = 16384
"""Most iterations: more take a client's processor for long (as Kafka bounds them)."""
MIN_SALT_BYTES = 12
MAX_SALT_BYTES = 1024
"""Bounds of a salt. Kafka's tools make some 26 bytes."""


SCRAM_SECRET = "/cluster/scram_secret"
"""The znode of a random number in Base64, ours: all brokers make the salts of users from it that do not exist."""
SECRET_BYTES = 32


class ScramShape(NamedTuple):
    """The parts of a credential that every client is shown, whatever its password, apart from the salt's bytes."""

    iterations: int
    salt_bytes: int


class ScramHash(Enum):
    """The hash of a mechanism, by the mechanism's name."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def algorithm(self) -> str:
        """The name of the hash in `hashlib`."""
        return self.name.replace("_", "").lower()

    @property
    def number(self) -> int:
        """The mechanism as requests name it (KIP-554)."""
        return 1 if self is ScramHash.SHA_256 else 2

    @property
    def size_bytes(self) -> int:
        """The size of a key."""
        return hashlib.new(self.algorithm).digest_size


def user_path(user: str) -> str:
    """Return the znode of a user."""
    return f"{CONFIG_USERS}/{encode_name(user)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Knowledge of a password that proves it without telling it."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @property
    def shape(self) -> ScramShape:
        """The shape of the credential."""
        return ScramShape(self.iterations, len(self.salt))

    @classmethod
    def of_salted_password(cls, kind: ScramHash, salted_password: bytes, salt: bytes, iterations: int) -> Self:
        """Return the credential of a password that was hashed with salt and iterations already."""
        client_key = hmac.digest(salted_password, b"Client Key", kind.algorithm)
        return cls(
            salt=salt,
            stored_key=hashlib.new(kind.algorithm, client_key).digest(),
            server_key=hmac.digest(salted_password, b"Server Key", kind.algorithm),
            iterations=iterations,
        )

    def encode(self) -> str:
        """Return Kafka's text."""
        parts = {"salt": self.salt, "stored_key": self.stored_key, "server_key": self.server_key}
        texts = [f"{name}={base64.b64encode(value).decode()}" for name, value in parts.items()]
        return ",".join([*texts, f"iterations={self.iterations}"])

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read Kafka's text. Raises ValueError."""
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            return cls(
                salt=base64.b64decode(parts["salt"], validate=True),
                stored_key=base64.b64decode(parts["stored_key"], validate=True),
                server_key=base64.b64decode(parts["server_key"], validate=True),
                iterations=int(parts["iterations"]),
            )
        except (KeyError, ValueError, binascii.Error):
            raise ValueError("is no SCRAM credential: salt=,stored_key=,server_key=,iterations=") from None


def salted_password(kind: ScramHash, password: str, salt: bytes, iterations: int) -> bytes:
    """Hash a password as clients do (RFC 5802: Hi). Takes some ms."""
    return hashlib.pbkdf2_hmac(kind.algorithm, password.encode(), salt, iterations)


def encode_secret(secret: bytes) -> bytes:
    """Encode the data of `SCRAM_SECRET`."""
    return base64.b64encode(secret)


def decode_secret(data: bytes) -> bytes:
    """Decode the data of `SCRAM_SECRET`. Raises CoordinationError."""
    try:
        secret = base64.b64decode(data, validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise CoordinationError(SCRAM_SECRET, f"does not hold {SECRET_BYTES} random bytes in Base64: delete it")
    return secret
