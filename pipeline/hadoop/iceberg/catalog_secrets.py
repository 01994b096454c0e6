"""Secrets among the properties of an Iceberg catalog, which have the names of pyiceberg and of file systems. Pure."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from pipeline.credentials import MASK, names_place

_SECRET_NAME = re.compile(
    r"(?:^|[._-])(?:secret|password|passwd|credential|token|secret-access-key|session-token|sas-token|account-key|"
    r"connection-string|api-key|authorization|cookie)(?:\.|$)",
    re.IGNORECASE,
)
"""A word of the name, with nothing or a dot behind: `adls.sas-token.ACCOUNT`, but not `gcs.oauth2.token-expires-at`."""

_QUERY_SECRET = re.compile(r"[?&;](?:password|passwd|pwd|sslpassword|token|secret)=([^&;#]*)", re.IGNORECASE)
_PLACE = re.compile(r"\$\{(?:env|file|directory):[^}]+\}")


def shows_secret(name: str, value: str) -> bool:
    """True if a property holds a secret itself, and not the place of one (`${env:NAME}` and its like)."""
    return any(True for _ in _secrets_of(name, value))


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """Return a text, such as an error, without the secrets of these properties."""
    secrets = {secret for name, value in properties.items() for secret in _secrets_of(name, value)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _secrets_of(name: str, value: str) -> Iterator[str]:
    if _SECRET_NAME.search(name):
        if not _is_named(value):
            yield value
        return
    for password in (_password_of(value), *_QUERY_SECRET.findall(value)):
        if password and not names_place(password):
            yield password
            yield unquote(password)


def _is_named(value: str) -> bool:
    """True if the secret of a value is named: `${env:SECRET}`, `CLIENT:${env:SECRET}` or `Bearer ${env:SECRET}`."""
    rest = _PLACE.sub("", value)
    return rest != value and (rest.strip().lower() in {"", "bearer", "basic"} or rest.find(":") == len(rest) - 1)


def _password_of(url: str) -> str | None:
    """Return the password of a URL as it is written: `postgresql://USER:PASSWORD@HOST/DATABASE`."""
    _, separator, rest = url.partition("://")
    user_info, at, _ = rest.rpartition("@")
    return user_info.partition(":")[2] if separator and at else None
