"""Declares the settings that protect a broker's listeners, under Kafka's names.

Each can be given for one listener, too, as `listener.name.LISTENER.SETTING` with the listener's name in lower case.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline.credentials import Secret
from pipeline.net.http.documents import checked_url
from pipeline.net.security.jaas import Jaas, parse_jaas
from pipeline.net.security.principal_rules import PrincipalRule, parse_rules
from pipeline.net.security.tls_context import TlsTrust
from pipeline.settings import MAX_INT32, SettingsModel, parsed_by

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
TRUST_LOCATION = "ssl.truststore.location"
TRUST_CERTIFICATES = "ssl.truststore.certificates"
TRUST_TYPE = "ssl.truststore.type"
PEM = "PEM"


def parse_list(text: str) -> tuple[str, ...]:
    """Parse names with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_mechanisms(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in MECHANISMS]
    if unknown:
        raise ValueError(f"{unknown[0]} is not served; choose from {', '.join(MECHANISMS)}")
    return names


def _check_versions(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or any(name not in TLS_VERSIONS for name in names):
        raise ValueError(f"must name some of {', '.join(TLS_VERSIONS)}")
    return names


def _check_jaas(text: Secret) -> Secret:
    parse_jaas(text.reveal())
    return text


def _check_token_jaas(text: Secret) -> Secret:
    options = parse_jaas(text.reveal()).tls
    unknown = sorted(options.keys() - {TRUST_LOCATION, TRUST_CERTIFICATES, TRUST_TYPE})
    if unknown:
        raise ValueError(f"has the option {unknown[0]}; {TRUST_LOCATION}, {TRUST_CERTIFICATES} and {TRUST_TYPE} count")
    if options.get(TRUST_TYPE, PEM) != PEM:
        raise ValueError(f"has another {TRUST_TYPE} than {PEM}: other formats are not read")
    if TRUST_LOCATION in options and TRUST_CERTIFICATES in options:
        raise ValueError(f"has both {TRUST_LOCATION} and {TRUST_CERTIFICATES}: give one")
    return text


def _parse_jaas(text: Secret | None) -> Jaas:
    return Jaas() if text is None else parse_jaas(text.reveal())


Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
JaasText = Annotated[Secret, AfterValidator(_check_jaas)]


class ListenerSecurity(SettingsModel):
    """The settings that protect one listener, or all."""

    service: ClassVar[str] = "broker"

    keystore_type: Literal["PEM"] = Field("PEM", alias="ssl.keystore.type")
    """Format of the private key and its certificates. Only `PEM` is read."""
    keystore_location: Path | None = Field(None, alias="ssl.keystore.location")
    """File with the broker's private key and its certificate chain, in PEM. It is read again when it changes."""
    keystore_key: Secret | None = Field(None, alias="ssl.keystore.key")
    """Private key in PEM, instead of `ssl.keystore.location`."""
    keystore_certificate_chain: str | None = Field(None, alias="ssl.keystore.certificate.chain")
    """Certificate chain in PEM, together with `ssl.keystore.key`."""
    key_password: Secret | None = Field(None, alias="ssl.key.password")
    """Password of the private key, if that is encrypted."""
    truststore_type: Literal["PEM"] = Field("PEM", alias="ssl.truststore.type")
    """Format of the trusted certificates. Only `PEM` is read."""
    truststore_location: Path | None = Field(None, alias="ssl.truststore.location")
    """File with the certificates of the authorities that may sign those of clients and brokers, in PEM."""
    truststore_certificates: str | None = Field(None, alias="ssl.truststore.certificates")
    """Certificates of these authorities in PEM, instead of `ssl.truststore.location`."""
    client_auth: Literal["none", "requested", "required"] = Field("none", alias="ssl.client.auth")
    """Certificates of clients: `none` asks for none, `requested` takes a client without one, `required` does not."""
    enabled_protocols: Annotated[tuple[str, ...], parsed_by(parse_list), AfterValidator(_check_versions)] = Field(
        TLS_VERSIONS, alias="ssl.enabled.protocols"
    )
    """Versions of TLS, with commas between them."""
    cipher_suites: str | None = Field(None, alias="ssl.cipher.suites", min_length=1)
    """Ciphers of TLS 1.2, as OpenSSL names them, with colons between them."""
    principal_mapping_rules: Annotated[tuple[PrincipalRule, ...], parsed_by(parse_rules)] = Field(
        (PrincipalRule(),), alias="ssl.principal.mapping.rules"
    )
    """Rules that make a user's name from a certificate's distinguished name: `RULE:PATTERN/REPLACEMENT/[LU]`, or
    `DEFAULT` for the whole distinguished name, with commas between them. The first that fits counts."""
    endpoint_identification: Literal["https", ""] = Field("https", alias="ssl.endpoint.identification.algorithm")
    """Check of the other broker's name against its certificate, when this broker connects: `https`, or empty for
    none."""
    sasl_enabled_mechanisms: Annotated[tuple[str, ...], parsed_by(parse_list), AfterValidator(_check_mechanisms)] = (
        Field((), alias="sasl.enabled.mechanisms")
    )
    """SASL mechanisms that clients may use, with commas between them: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`,
    `OAUTHBEARER`."""
    plain_jaas: JaasText | None = Field(None, alias="plain.sasl.jaas.config")
    """Users and passwords of PLAIN, in Kafka's form: `...PlainLoginModule required username="BROKER" password="..."
    user_ALICE="...";`. `username` and `password` are those with which the broker logs in to others."""
    scram_sha_256_jaas: JaasText | None = Field(None, alias="scram-sha-256.sasl.jaas.config")
    """User and password with which the broker logs in to others by SCRAM-SHA-256."""
    scram_sha_512_jaas: JaasText | None = Field(None, alias="scram-sha-512.sasl.jaas.config")
    """User and password with which the broker logs in to others by SCRAM-SHA-512."""
    oauthbearer_jaas: Annotated[Secret, AfterValidator(_check_token_jaas)] | None = Field(
        None, alias="oauthbearer.sasl.jaas.config"
    )
    """Certificates of the authorities that are trusted for the document of `sasl.oauthbearer.jwks.endpoint.url`:
    `...OAuthBearerLoginModule required ssl.truststore.location="FILE" ssl.truststore.type="PEM";`, or
    `ssl.truststore.certificates`. By default those that come with the package certifi. `clientId="..."
    clientSecret="..." scope="..."` are those with which the broker asks for its own tokens."""
    token_url: Annotated[str, AfterValidator(checked_url)] | None = Field(
        None, alias="sasl.oauthbearer.token.endpoint.url"
    )
    """Place of the tokens with which the broker logs in to others by OAUTHBEARER: the URL at which a server of OpenID
    Connect gives tokens to clients, or `file:/PATH` of a file with a token, which is read for each login."""
    jwks_url: Annotated[str, AfterValidator(checked_url)] | None = Field(
        None, alias="sasl.oauthbearer.jwks.endpoint.url"
    )
    """Document with the public keys of the authority that signs the tokens of OAUTHBEARER: `https://...`,
    `http://...` (only where nobody can change what is on the wire) or `file:/PATH`."""
    jwks_refresh_ms: int = Field(3_600_000, alias="sasl.oauthbearer.jwks.endpoint.refresh.ms", ge=1000, le=MAX_INT32)
    """Interval in ms at which that document is read. A token with a new key has it read earlier, and a file is read
    every 10 s."""
    expected_audience: Annotated[tuple[str, ...], parsed_by(parse_list)] = Field(
        (), alias="sasl.oauthbearer.expected.audience"
    )
    """Audiences (`aud`), with commas between them, of which a token must have one. By default all are taken: set it
    where the authority signs tokens for other services, too."""
    expected_issuer: str | None = Field(None, alias="sasl.oauthbearer.expected.issuer", min_length=1)
    """Issuer (`iss`) that a token must have."""
    scope_claim: str = Field("scope", alias="sasl.oauthbearer.scope.claim.name", min_length=1)
    """Claim with the scopes of a token."""
    subject_claim: str = Field("sub", alias="sasl.oauthbearer.sub.claim.name", min_length=1)
    """Claim with the name of the user."""
    clock_skew_s: int = Field(30, alias="sasl.oauthbearer.clock.skew.seconds", ge=0, le=3600)
    """Difference in s between the clocks of the authority and of the broker that is allowed for."""
    sasl_server_max_receive_size: int = Field(524_288, alias="sasl.server.max.receive.size", ge=1024, le=MAX_INT32)
    """Largest request in bytes of a client that is not authenticated."""
    connections_max_reauth_ms: int = Field(0, alias="connections.max.reauth.ms", ge=0, le=2**63 - 1)
    """Time in ms for which an authentication by SASL holds, 0 for ever. Clients renew it on the open connection."""

    @property
    def plain_users(self) -> Mapping[str, Secret]:
        """Passwords of PLAIN, by user."""
        return _parse_jaas(self.plain_jaas).users

    @property
    def token_trust(self) -> TlsTrust:
        """Authorities that are trusted for the keys of tokens."""
        options = _parse_jaas(self.oauthbearer_jaas).tls
        path = options.get(TRUST_LOCATION)
        return TlsTrust(
            path=None if path is None else Path(path),
            certificates=options.get(TRUST_CERTIFICATES),
            setting="oauthbearer.sasl.jaas.config",
        )

    def login(self, mechanism: Mechanism) -> Jaas:
        """Return what the broker logs in to others with: a name and password, or the client of a server of tokens."""
        text = {
            "PLAIN": self.plain_jaas,
            "SCRAM-SHA-256": self.scram_sha_256_jaas,
            "SCRAM-SHA-512": self.scram_sha_512_jaas,
            "OAUTHBEARER": self.oauthbearer_jaas,
        }
        return _parse_jaas(text.get(mechanism))

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of the settings."""
        return frozenset(str(field.alias) for field in ListenerSecurity.model_fields.values())
