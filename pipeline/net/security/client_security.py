"""Protection of connections that a client opens: settings under librdkafka's names, and what a pool dials with.

`security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password`, `ssl.ca.location`, `ssl.certificate.location`,
`ssl.key.location`, ... A value may name its place, as `${env:NAME}` (see `credentials`).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline.credentials import Secret, resolved
from pipeline.errors import AuthenticationError, ConfigurationError
from pipeline.model import HostPort, SecurityProtocol
from pipeline.net.dialing import PLAIN_DIALER, Connect, Dialer
from pipeline.net.http.documents import checked_url, document_path
from pipeline.net.transport import SocketTransport, Transport, connect
from pipeline.settings import SettingsModel, parsed_by

if TYPE_CHECKING:  # programs with open connections would take the time and memory of TLS and SASL, too
    import ssl

    from pipeline.net.security.tls import Handshakes
    from pipeline.net.security.token_source import TokenSource

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ALIASES: Mapping[str, str] = {"sasl.mechanisms": "sasl.mechanism"}
"""Other names of settings, as librdkafka has them."""


def _parse_protocol(text: str) -> SecurityProtocol:
    try:
        return SecurityProtocol(text.upper())
    except ValueError:
        raise ValueError(f"must be one of {', '.join(each.value for each in SecurityProtocol)}") from None


class ClientSecurity(SettingsModel):
    """The protection of a client's connections. Build it with `from_settings`."""

    service: ClassVar[str] = "client"

    protocol: Annotated[SecurityProtocol, parsed_by(_parse_protocol)] = Field(
        SecurityProtocol.PLAINTEXT, alias="security.protocol"
    )
    """Protocol of the listener: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        "PLAIN", alias="sasl.mechanism"
    )
    """SASL mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`."""
    username: str | None = Field(None, alias="sasl.username", min_length=1)
    """Name of the user, for PLAIN and SCRAM."""
    password: Secret | None = Field(None, alias="sasl.password")
    """Password of the user. Write `${env:NAME}`, `${file:PATH:KEY}` or `${directory:DIR:FILE}` to keep it elsewhere."""
    token: Secret | None = Field(None, alias="sasl.oauthbearer.token")
    """Token (JWT) for OAUTHBEARER. It is taken once: give a new one to a new client before it ends."""
    token_method: Literal["default", "oidc"] = Field("default", alias="sasl.oauthbearer.method")
    """`oidc` asks a server of OpenID Connect for tokens, as `sasl.oauthbearer.token.endpoint.url` does by itself."""
    token_url: Annotated[str, AfterValidator(checked_url)] | None = Field(
        None, alias="sasl.oauthbearer.token.endpoint.url"
    )
    """Place of tokens for OAUTHBEARER, instead of `sasl.oauthbearer.token`: `file:/PATH` of a file with a token, which
    is read for each login, or the URL at which a server of OpenID Connect gives tokens to clients (`https://...`)."""
    token_client_id: str | None = Field(None, alias="sasl.oauthbearer.client.id", min_length=1)
    """Name of the client at this server."""
    token_client_secret: Secret | None = Field(None, alias="sasl.oauthbearer.client.secret")
    """Password of the client at this server."""
    token_scope: str | None = Field(None, alias="sasl.oauthbearer.scope", min_length=1)
    """Scope that the server is asked for, with spaces between several."""
    token_ca_location: Path | None = Field(None, alias="https.ca.location")
    """File or directory with the certificates of the authorities that are trusted for this server, in PEM. By default
    those that come with the package certifi."""
    token_ca_pem: str | None = Field(None, alias="https.ca.pem")
    """Certificates of these authorities in PEM, instead of `https.ca.location`."""
    ca_location: Path | None = Field(None, alias="ssl.ca.location")
    """File or directory with the certificates of trusted authorities, in PEM. By default those of the system."""
    ca_pem: str | None = Field(None, alias="ssl.ca.pem")
    """Certificates of trusted authorities in PEM, instead of `ssl.ca.location`."""
    certificate_location: Path | None = Field(None, alias="ssl.certificate.location")
    """File with the client's certificate chain, in PEM."""
    certificate_pem: str | None = Field(None, alias="ssl.certificate.pem")
    """The client's certificate chain in PEM, together with `ssl.key.pem`."""
    key_location: Path | None = Field(None, alias="ssl.key.location")
    """File with the client's private key, in PEM."""
    key_pem: Secret | None = Field(None, alias="ssl.key.pem")
    """The client's private key in PEM."""
    key_password: Secret | None = Field(None, alias="ssl.key.password")
    """Password of the private key, if that is encrypted."""
    cipher_suites: str | None = Field(None, alias="ssl.cipher.suites", min_length=1)
    """Ciphers of TLS 1.2, as OpenSSL names them, with colons between them."""
    checks_certificate: bool = Field(default=True, alias="enable.ssl.certificate.verification")
    """False takes the certificate of any server, and so protects from nobody who is in between."""
    identification: Literal["https", "none"] = Field("https", alias="ssl.endpoint.identification.algorithm")
    """Check of the server's name against its certificate: `https`, or `none`."""

    def __str__(self) -> str:
        return self.protocol.value

    @classmethod
    def has(cls, key: str) -> bool:
        """True if a setting of this name belongs here."""
        return key in ALIASES or any(key == field.alias for field in cls.model_fields.values())

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "ClientSecurity":
        """Check settings, and take values from where they are kept. Raises ConfigurationError."""
        given = {ALIASES.get(key, key): _resolved(key, value) for key, value in settings.items()}
        made = super().from_settings(given)
        made._require_credentials()
        return made

    def _require_credentials(self) -> None:
        if self.protocol.is_sasl:
            for name, value in self._needed().items():
                if value is None:
                    raise ConfigurationError(name, f"is missing: {self.mechanism} needs it")
        if (self.certificate_location is None) != (self.key_location is None):
            raise ConfigurationError("ssl.key.location", "and ssl.certificate.location are given together, or neither")

    def _needed(self) -> Mapping[str, object]:
        needed: dict[str, object]
        if self.mechanism == "OAUTHBEARER" and self.token_url is None and self.token_method == "default":
            return {"sasl.oauthbearer.token": self.token}
        if self.mechanism == "OAUTHBEARER":
            needed = {"sasl.oauthbearer.token.endpoint.url": self.token_url}
            if self.token_url is None or document_path(self.token_url) is None:
                needed |= {"sasl.oauthbearer.client.id": self.token_client_id}
                needed |= {"sasl.oauthbearer.client.secret": self.token_client_secret}
            return needed
        return {"sasl.username": self.username, "sasl.password": self.password}

    def dialer(self, plain: Connect = connect) -> Dialer:
        """Return what a pool dials with. Reads certificates. Raises ConfigurationError."""
        if self.protocol is SecurityProtocol.PLAINTEXT:
            return PLAIN_DIALER if plain is connect else Dialer(plain)
        dial, authenticate = plain, None
        if self.protocol.is_encrypted:
            from pipeline.net.security.tls import Handshakes

            dial = partial(_dial_encrypted, plain, Handshakes(), self._context())
        if self.protocol.is_sasl:
            from pipeline.net.security.sasl_client import SaslLogin, log_in

            login = SaslLogin(
                mechanism=self.mechanism,
                user=self.username or "",
                password=self.password,
                token=self.token,
                find_token=None if self.token_url is None else self._token_source(self.token_url).find,
            )
            authenticate = partial(log_in, login)
        return Dialer(dial, authenticate)

    def _token_source(self, url: str) -> "TokenSource":
        from pipeline.net.security.tls_context import TlsTrust, trusting_context
        from pipeline.net.security.token_source import TokenSource

        trust = TlsTrust(path=self.token_ca_location, certificates=self.token_ca_pem, setting="https.ca.location")
        trusting_context(trust)
        return TokenSource(url, self.token_client_id or "", self.token_client_secret, self.token_scope, trust)

    def _context(self) -> "ssl.SSLContext":
        from pipeline.net.security.tls_context import TlsIdentity, TlsPlan, TlsTrust, client_context

        identity, trust = None, None
        if self.certificate_location is not None or self.certificate_pem is not None:
            identity = TlsIdentity(
                certificate_path=self.certificate_location,
                key_path=self.key_location,
                certificate=self.certificate_pem,
                key=self.key_pem,
                key_password=self.key_password,
                setting="ssl.certificate.location",
            )
        if self.ca_location is not None or self.ca_pem is not None:
            trust = TlsTrust(path=self.ca_location, certificates=self.ca_pem, setting="ssl.ca.location")
        return client_context(
            TlsPlan(identity=identity, trust=trust, ciphers=self.cipher_suites),
            checks_name=self.identification == "https",
            checks_certificate=self.checks_certificate,
        )


def _resolved(key: str, value: Any) -> Any:
    return resolved(key, value) if isinstance(value, str) else value


async def _dial_encrypted(
    plain: Connect, handshakes: "Handshakes", context: "ssl.SSLContext", address: HostPort
) -> Transport:
    transport = await plain(address)
    assert isinstance(transport, SocketTransport)  # no other network has TLS
    try:
        return await handshakes.connect(transport, context, address.host)
    except AuthenticationError as error:
        raise AuthenticationError(f"{address}: {error}") from error


def gathered(settings: Any, prefix: str = "") -> Any:
    """Return the settings of a service with those of `ClientSecurity` (behind a prefix) as one value, `security`.

    Raises ConfigurationError.
    """
    if not isinstance(settings, Mapping):
        return settings
    own = {key: value for key, value in settings.items() if _is_own(key, prefix)}
    if not own:
        return settings
    try:
        security = ClientSecurity.from_settings({key.removeprefix(prefix): value for key, value in own.items()})
    except ConfigurationError as error:
        raise ConfigurationError(f"{prefix}{error.key}", error.reason) from error
    others = {key: value for key, value in settings.items() if key not in own}
    return {**others, f"{prefix}security": security}


def _is_own(key: object, prefix: str) -> bool:
    return isinstance(key, str) and key.startswith(prefix) and ClientSecurity.has(key.removeprefix(prefix))


OPEN_SECURITY = ClientSecurity.from_settings({})
"""Connections that are neither encrypted nor authenticated."""
