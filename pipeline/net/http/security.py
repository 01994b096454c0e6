"""Declares the settings that protect the HTTP server of a service: `http.` before the names of Kafka and Confluent.

`http.listen` stands beside them in the settings of each service.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field

from pipeline.credentials import Secret, resolved
from pipeline.errors import ConfigurationError
from pipeline.net.http.documents import checked_url
from pipeline.net.security.principal_rules import PrincipalRule, parse_rules
from pipeline.settings import Address, SettingsModel, parsed_by

OPERATIONS_PATHS = ("/healthz", "/metrics", "/readyz")
"""Paths that every service has, for its operators and their programs."""
_PREFIX = "http."
_LISTEN = "http.listen"
GATHERED = "http.security"
"""Name of the field that holds the settings of HttpSecurity in the settings of a service."""


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    for path in paths:
        if path not in OPERATIONS_PATHS:
            raise ValueError(f"names {path}; only {', '.join(OPERATIONS_PATHS)} may be open to everybody")
    return paths


class HttpSecurity(SettingsModel):
    """The protection of an HTTP server. Build it with `from_settings`."""

    service: ClassVar[str] = "HTTP server"

    keystore_location: Path | None = Field(None, alias="http.ssl.keystore.location")
    """File with the server's private key and its certificate chain, in PEM. With it the server speaks TLS alone. It is
    read again when it changes."""
    key_password: Secret | None = Field(None, alias="http.ssl.key.password")
    """Password of the private key, if that is encrypted."""
    client_auth: Literal["none", "requested", "required"] = Field("none", alias="http.ssl.client.auth")
    """Certificates of clients: `none` asks for none, `requested` takes a client without one, `required` does not. The
    name that a certificate stands for is a user of `http.users.file`, if that says so."""
    truststore_location: Path | None = Field(None, alias="http.ssl.truststore.location")
    """File or directory with the certificates of the authorities that may sign those of clients, in PEM. It is read
    again when it changes."""
    principal_mapping_rules: Annotated[tuple[PrincipalRule, ...], parsed_by(parse_rules)] = Field(
        (PrincipalRule(),), alias="http.ssl.principal.mapping.rules"
    )
    """Rules that make a user's name from a certificate's distinguished name: `RULE:PATTERN/REPLACEMENT/[LU]`, or
    `DEFAULT` for the whole distinguished name, with commas between them. The first that fits counts."""
    users_file: Path | None = Field(None, alias="http.users.file")
    """File with users, their roles, and hashes of their passwords and tokens; see `pipeline http-user`. With it the
    server demands a login. It is read again when it changes."""
    jwks_url: Annotated[str, AfterValidator(checked_url)] | None = Field(
        None, alias="http.oauthbearer.jwks.endpoint.url"
    )
    """Document with the public keys of an authority whose tokens (JWT) let users in, beside those of the file:
    `https://...`, `http://...` or `file:/PATH`. The scopes of a token name the role: `read`, `write` or `admin`."""
    token_truststore_location: Path | None = Field(None, alias="http.oauthbearer.ssl.truststore.location")
    """File or directory with the certificates of the authorities that are trusted for that document, in PEM. By default
    those that come with the package certifi."""
    expected_audience: Annotated[tuple[str, ...], parsed_by(_parse_list)] = Field(
        (), alias="http.oauthbearer.expected.audience"
    )
    """Audiences (`aud`), with commas between them, of which a token must have one. Needed with the document."""
    expected_issuer: str | None = Field(None, alias="http.oauthbearer.expected.issuer", min_length=1)
    """Issuer (`iss`) that a token must have."""
    scope_claim: str = Field("scope", alias="http.oauthbearer.scope.claim.name", min_length=1)
    """Claim with the scopes of a token."""
    subject_claim: str = Field("sub", alias="http.oauthbearer.sub.claim.name", min_length=1)
    """Claim with the name of the user."""
    skip_paths: Annotated[tuple[str, ...], parsed_by(_parse_list), AfterValidator(_check_paths)] = Field(
        (), alias="http.authentication.skip.paths"
    )
    """Paths that need no login, with commas between them: some of `/healthz`, `/metrics` and
    `/readyz`."""
    metrics_listen: Address | None = Field(None, alias="http.metrics.listen")
    """Address of a server of its own for `/metrics`, `/healthz` and `/readyz`, which needs neither login nor
    certificate. `http.listen` then serves them no more."""

    def __str__(self) -> str:
        return "" if self == OPEN_HTTP else "set"

    @property
    def is_encrypted(self) -> bool:
        """True if the server speaks TLS."""
        return self.keystore_location is not None

    @property
    def asks_login(self) -> bool:
        """True if the server demands a password or token."""
        return self.users_file is not None or self.jwks_url is not None

    @property
    def scheme(self) -> str:
        """Scheme of the server's URLs."""
        return "https" if self.is_encrypted else "http"

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Check settings, and take values from where they are kept. Raises ConfigurationError."""
        config = super().from_settings({key: _resolved(key, value) for key, value in settings.items()})
        if config.key_password is not None and config.keystore_location is None:
            raise ConfigurationError("http.ssl.keystore.location", "is missing, and http.ssl.key.password is given")
        if config.jwks_url is not None and not config.expected_audience:
            reason = "is missing: tokens that the authority signs for other services would be taken, too"
            raise ConfigurationError("http.oauthbearer.expected.audience", reason)
        if config.skip_paths and not config.asks_login:
            raise ConfigurationError("http.users.file", "is missing: without it no path needs a password")
        config._check_certificates()
        return config

    def _check_certificates(self) -> None:
        """Raise ConfigurationError for settings that would let nobody in by a certificate."""
        if self.client_auth == "none":
            if self.truststore_location is not None:
                reason = (
                    "is missing: no client is asked for a certificate that http.ssl.truststore.location could check"
                )
                raise ConfigurationError("http.ssl.client.auth", reason)
            return
        if self.keystore_location is None:
            raise ConfigurationError("http.ssl.keystore.location", "is missing, and http.ssl.client.auth is given")
        if self.truststore_location is None:
            raise ConfigurationError(
                "http.ssl.truststore.location", "is missing: it names who signs clients' certificates"
            )
        if self.client_auth == "requested" and self.users_file is None:
            reason = "is missing: it gives users with certificates their roles, and without it nobody would need one"
            raise ConfigurationError("http.users.file", reason)


def _resolved(key: str, value: Any) -> Any:
    return resolved(key, value) if isinstance(value, str) else value


def gathered_http(settings: Any) -> Any:
    """Return the settings of a service with those of HttpSecurity as one value. Raises ConfigurationError."""
    if not isinstance(settings, Mapping):
        return settings
    own = {key: value for key, value in settings.items() if _is_own(key)}
    if not own:
        return settings
    others = {key: value for key, value in settings.items() if key not in own}
    return {**others, GATHERED: HttpSecurity.from_settings(own)}


def _is_own(key: object) -> bool:
    return isinstance(key, str) and key.startswith(_PREFIX) and key not in {_LISTEN, GATHERED}


OPEN_HTTP = HttpSecurity.from_settings({})
"""A server that neither encrypts nor asks for passwords."""
