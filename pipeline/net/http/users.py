"""Users of an HTTP server in a file: one entry a line, `NAME:ROLE:HASH`. Pure.

`HASH` is `$scrypt$ln=14,r=8,p=1$SALT$KEY` of a password, or `$sha256$KEY` of a token; `$certificate$` stands for a user
who shows a certificate with this name. A token is 256 random bits, which
nobody can guess, so that one round of SHA-256 protects it; a password needs scrypt, which takes 16 MB and some 50 ms.
All passwords have the same cost, so that the time of a check says nothing about a user.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from pipeline.errors import ConfigurationError

SCRYPT = "$scrypt$ln=14,r=8,p=1$"
SHA256 = "$sha256$"
CERTIFICATE = "$certificate$"
_COST = 1 << 14
_BLOCK = 8
_LANES = 1
_MEMORY = 64 << 20
"""Bound of OpenSSL's memory for one hash; 16 MB are taken."""
SALT_BYTES = 16
TOKEN_BYTES = 32
KEY_BYTES = 32
MAX_USERS = 10_000
MAX_NAME_LENGTH = 200
MAX_PASSWORD_BYTES = 1024


class Role(IntEnum):
    """Rights of a user. Each role includes those before it."""

    READ = 1
    WRITE = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpUser:
    """A user who has shown a password or token."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class PasswordEntry:
    """A user with the salt and the key of the password."""

    user: HttpUser
    salt: bytes
    key: bytes = field(repr=False)

    def has(self, password: bytes) -> bool:
        """True if this is the password. Takes some 50 ms: call it in a thread."""
        return hmac.compare_digest(_scrypt(password, self.salt), self.key)


@dataclass(frozen=True, slots=True)
class HttpUsers:
    """Users by what they show: a name and password, a token, or a certificate."""

    passwords: Mapping[str, PasswordEntry] = field(default_factory=dict)
    tokens: Mapping[bytes, HttpUser] = field(default_factory=dict, repr=False)
    """By the SHA-256 of the token."""
    certificates: Mapping[str, HttpUser] = field(default_factory=dict)
    """By the name that the certificate stands for."""

    def of_token(self, token: bytes) -> HttpUser | None:
        """Return the user of a token, None if there is none."""
        return self.tokens.get(hashlib.sha256(token).digest())


NOBODY = PasswordEntry(HttpUser(name="", role=Role.READ), bytes(SALT_BYTES), bytes(KEY_BYTES))
"""Stands for a user who is not known: the check takes the same time, and fails."""


def parse_users(text: str) -> HttpUsers:
    """Return the users of a file. Raises ConfigurationError, which names the line and shows nothing of it."""
    passwords: dict[str, PasswordEntry] = {}
    tokens: dict[bytes, HttpUser] = {}
    certificates: dict[str, HttpUser] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, role, kept = parse_entry(line.strip())
            user = HttpUser(name=name, role=role)
            if kept.startswith(SHA256):
                tokens[_decoded(kept.removeprefix(SHA256), KEY_BYTES)] = user
                continue
            if kept == CERTIFICATE:
                if name in certificates:
                    raise ValueError("gives a user a second role with a certificate")
                certificates[name] = user
                continue
            salt, separator, key = kept.removeprefix(SCRYPT).partition("$")
            if not kept.startswith(SCRYPT) or not separator:
                raise ValueError("holds no hash that `pipeline http-user` makes")
            if name in passwords:
                raise ValueError("gives a user a second password")
            passwords[name] = PasswordEntry(user, _decoded(salt, SALT_BYTES), _decoded(key, KEY_BYTES))
        except ValueError as error:
            raise ConfigurationError("http.users.file", f"line {number} {error}") from None
    count = len(passwords) + len(tokens) + len(certificates)
    if count > MAX_USERS:
        raise ConfigurationError("http.users.file", f"has more than {MAX_USERS} entries")
    if not count:
        raise ConfigurationError("http.users.file", "names no user: add one with `pipeline http-user`")
    return HttpUsers(passwords, tokens, certificates)


def parse_entry(line: str) -> tuple[str, Role, str]:
    """Return name, role and hash of an entry. Raises ValueError."""
    name, _, rest = line.partition(":")
    role, separator, kept = rest.partition(":")
    if not separator:
        raise ValueError("is not NAME:ROLE:HASH")
    if not is_name(name):
        raise ValueError(f"has no name of 1 to {MAX_NAME_LENGTH} printable characters without : and white space")
    if role not in {each.name.lower() for each in Role}:
        raise ValueError("has a role that is none of read, write, admin")
    return name, Role[role.upper()], kept


def is_name(name: str) -> bool:
    """True if a user may bear this name."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and not any(each in ": #" for each in name)


def password_entry(name: str, role: Role, password: str, salt: bytes) -> str:
    """Return the entry of a user with a password. Raises ValueError for one that is empty or too long."""
    given = password.encode()
    if not 0 < len(given) <= MAX_PASSWORD_BYTES:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes")
    return f"{name}:{role}:{SCRYPT}{_encoded(salt)}${_encoded(_scrypt(given, salt))}"


def token_entry(name: str, role: Role, token: str) -> str:
    """Return the entry of a user with a token."""
    return f"{name}:{role}:{SHA256}{_encoded(hashlib.sha256(token.encode()).digest())}"


def certificate_entry(name: str, role: Role) -> str:
    """Return the entry of a user with a certificate."""
    return f"{name}:{role}:{CERTIFICATE}"


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_LANES, maxmem=_MEMORY, dklen=KEY_BYTES)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, length: int) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != length:
        raise ValueError("holds a hash that is damaged: make the entry anew")
    return data
