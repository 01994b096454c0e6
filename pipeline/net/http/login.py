"""Login of clients of HTTP servers: a password or token, and the authorities that are trusted, under Confluent's names.

`basic.auth.user.info`, `bearer.auth.token`, `schema.registry.ssl.ca.location`. A value may name its place, as
`${env:NAME}` (see `credentials`).
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from pipeline.credentials import Secret, resolved
from pipeline.errors import ConfigurationError
from pipeline.settings import SettingsModel

if TYPE_CHECKING:  # programs with open connections would take the time and memory of TLS, too
    import ssl

TRUSTSTORE = "schema.registry.ssl.truststore.location"
"""Name of `schema.registry.ssl.ca.location` in settings of Java's clients."""
GATHERED_LOGIN = "login"
"""End of the name of the field that holds these settings in those of a service."""


class HttpLogin(SettingsModel):
    """Password or token of a client, and whom it trusts. Build it with `from_settings`."""

    service: ClassVar[str] = "client of HTTP servers"

    password_source: Literal["USER_INFO", "URL"] | None = Field(None, alias="basic.auth.credentials.source")
    """Place of name and password: `USER_INFO`, which is `basic.auth.user.info`, or `URL` for those in the URL. By
    default `USER_INFO` if that is given."""
    user_info: Secret | None = Field(None, alias="basic.auth.user.info")
    """Name and password, `NAME:PASSWORD`. Write `${env:NAME}`, `${file:PATH:KEY}` or `${directory:DIR:FILE}` to keep
    them elsewhere."""
    token_source: Literal["STATIC_TOKEN"] | None = Field(None, alias="bearer.auth.credentials.source")
    """Place of the token: `STATIC_TOKEN`, which is `bearer.auth.token`. Need not be given."""
    token: Secret | None = Field(None, alias="bearer.auth.token")
    """Token, instead of name and password."""
    ca_location: Path | None = Field(None, alias="schema.registry.ssl.ca.location")
    """File or directory with the certificates of trusted authorities, in PEM; also as
    `schema.registry.ssl.truststore.location`. By default those that come with the package certifi."""
    truststore_type: Literal["PEM"] = Field("PEM", alias="schema.registry.ssl.truststore.type")
    """Format of these certificates. Only `PEM` is read."""

    def __str__(self) -> str:
        return "" if self == NO_LOGIN else "set"

    @classmethod
    def has(cls, key: str) -> bool:
        """True if a setting of this name belongs here."""
        return key == TRUSTSTORE or any(key == field.alias for field in cls.model_fields.values())

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Check settings, and take values from where they are kept. Raises ConfigurationError."""
        given = {key: _resolved(key, value) for key, value in settings.items()}
        if TRUSTSTORE in given:
            given = {"schema.registry.ssl.ca.location": given.pop(TRUSTSTORE), **given}
        made = super().from_settings(given)
        if made.password_source == "USER_INFO" and made.user_info is None:
            raise ConfigurationError("basic.auth.user.info", "is missing: basic.auth.credentials.source is USER_INFO")
        if made.token_source is not None and made.token is None:
            raise ConfigurationError("bearer.auth.token", "is missing: bearer.auth.credentials.source is STATIC_TOKEN")
        if made.user_info is not None and made.token is not None:
            raise ConfigurationError("bearer.auth.token", "excludes basic.auth.user.info: give one of both")
        if made.user_info is not None and ":" not in made.user_info.reveal():
            raise ConfigurationError("basic.auth.user.info", "is not NAME:PASSWORD")
        if made.token is not None and not (made.token.reveal().isascii() and made.token.reveal().isprintable()):
            raise ConfigurationError("bearer.auth.token", "has characters that no token has")
        return made

    def headers(self) -> dict[str, str]:
        """Return the header with which the client logs in. Do not log it."""
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token.reveal()}"}
        if self.user_info is not None and self.password_source != "URL":
            return {"Authorization": f"Basic {base64.b64encode(self.user_info.reveal().encode()).decode()}"}
        return {}

    def context(self) -> "ssl.SSLContext | None":
        """Return the context of TLS, None for the HTTP library's. Reads certificates. Raises ConfigurationError."""
        if self.ca_location is None:
            return None
        from pipeline.net.security.tls_context import TlsPlan, TlsTrust, client_context

        trust = TlsTrust(path=self.ca_location, setting="schema.registry.ssl.ca.location")
        return client_context(TlsPlan(trust=trust), checks_name=True)


def _resolved(key: str, value: Any) -> Any:
    return resolved(key, value) if isinstance(value, str) else value


def gathered_login(settings: Any, prefix: str = "") -> Any:
    """Return the settings of a service with those of HttpLogin (behind a prefix) as one value, `login`.

    Raises ConfigurationError.
    """
    if not isinstance(settings, Mapping):
        return settings
    own = {
        key: value
        for key, value in settings.items()
        if isinstance(key, str) and key.startswith(prefix) and HttpLogin.has(key.removeprefix(prefix))
    }
    if not own:
        return settings
    try:
        login = HttpLogin.from_settings({key.removeprefix(prefix): value for key, value in own.items()})
    except ConfigurationError as error:
        raise ConfigurationError(f"{prefix}{error.key}", error.reason) from error
    return {**{key: value for key, value in settings.items() if key not in own}, f"{prefix}{GATHERED_LOGIN}": login}


NO_LOGIN = HttpLogin.from_settings({})
"""Requests without password or token, to servers of the authorities that all trust."""
