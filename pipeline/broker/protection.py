"""Protection of the listeners of a running broker: TLS contexts that follow their files, and SASL mechanisms.

Certificates and the keys of tokens are read again while the broker runs.
"""

import random
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from prometheus_client.core import Metric

from pipeline.broker.metrics.security import collect_authentications, collect_certificates
from pipeline.broker.requests.context import BrokerContext
from pipeline.broker.security.authentication import AuthenticationCounts, SaslAuthenticator, SaslPlan
from pipeline.broker.security.sasl.mechanism import Proof, SaslMechanism
from pipeline.broker.security.sasl.oauthbearer import OAuthBearerMechanism, VerifyToken
from pipeline.broker.security.sasl.plain import PlainMechanism
from pipeline.broker.security.sasl.scram import ScramExchange
from pipeline.broker.security.scram_secret import find_scram_secret
from pipeline.broker.settings.listeners import ListenerPlan, ListenersConfig
from pipeline.broker.settings.security import ListenerSecurity
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.scram_znodes import ScramHash
from pipeline.errors import AuthenticationError, ConfigurationError
from pipeline.model import ANONYMOUS, Clock
from pipeline.net.answers import Handler
from pipeline.net.dialing import Connect, Dialer
from pipeline.net.http.documents import document_path
from pipeline.net.network import ConnectionListener
from pipeline.net.security.client_security import ClientSecurity
from pipeline.net.security.jaas import Jaas
from pipeline.net.security.principal_rules import find_user
from pipeline.net.security.tls import Handshakes
from pipeline.net.security.tls_context import ReloadingContext, TlsIdentity, TlsPlan, TlsTrust, server_context
from pipeline.net.server import ServedListener
from pipeline.net.transport import SocketTransport, Transport

if TYPE_CHECKING:  # brokers without tokens would take the time and memory of them, too
    from pipeline.net.security.published_keys import PublishedKeys

KEPT_USERS = 1000
"""Names of certificates whose users are remembered: a client that comes again costs nothing."""
LOOK_S = 10.0
"""Interval at which the files of certificates are looked at."""
NONCE_BITS = 130
OAUTHBEARER = "OAUTHBEARER"

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def tls_plan(security: ListenerSecurity) -> TlsPlan:
    """Return what the TLS contexts of a listener are made of."""
    has_identity = security.keystore_location is not None or security.keystore_certificate_chain is not None
    has_trust = security.truststore_location is not None or security.truststore_certificates is not None
    return TlsPlan(
        identity=TlsIdentity(
            certificate_path=security.keystore_location,
            certificate=security.keystore_certificate_chain,
            key=security.keystore_key,
            key_password=security.key_password,
        )
        if has_identity
        else None,
        trust=TlsTrust(path=security.truststore_location, certificates=security.truststore_certificates)
        if has_trust
        else None,
        versions=security.enabled_protocols,
        ciphers=security.cipher_suites,
    )


def _tls_of_client(security: ListenerSecurity) -> dict[str, object]:
    """Return a broker's settings of TLS as those of a client."""
    found: dict[str, object] = {
        "ssl.ca.location": security.truststore_location,
        "ssl.ca.pem": security.truststore_certificates,
        "ssl.certificate.location": security.keystore_location,
        "ssl.key.location": security.keystore_location,
        "ssl.certificate.pem": security.keystore_certificate_chain,
        "ssl.key.pem": security.keystore_key,
        "ssl.key.password": security.key_password,
        "ssl.cipher.suites": security.cipher_suites,
        "ssl.endpoint.identification.algorithm": security.endpoint_identification or "none",
    }
    return {key: value for key, value in found.items() if value is not None}


def _published_keys(security: ListenerSecurity, listener: str) -> "PublishedKeys":
    """Return the keys for the tokens of a listener. Raises ConfigurationError."""
    from pipeline.net.security.published_keys import PublishedKeys

    if security.jwks_url is None:
        raise ConfigurationError(
            "sasl.oauthbearer.jwks.endpoint.url", f"is missing: nobody could log in to the listener {listener}"
        )
    return PublishedKeys(security.jwks_url, security.jwks_refresh_ms / 1000, security.token_trust)


def _token_check(security: ListenerSecurity, keys: "PublishedKeys", clock: Clock) -> VerifyToken:
    from pipeline.net.security.web_tokens import TokenRules

    rules = TokenRules(
        audiences=security.expected_audience,
        issuer=security.expected_issuer,
        subject_claim=security.subject_claim,
        scope_claim=security.scope_claim,
        clock_skew_s=security.clock_skew_s,
    )

    def verify(token: str) -> Proof:
        found = keys.verify(token, rules, clock())
        return Proof(found.subject, found.until_ms)

    return verify


def _token_login(security: ListenerSecurity, login: Jaas, setting: str) -> dict[str, object]:
    """Return the settings of a client that asks for tokens as this broker. Raises ConfigurationError."""
    url = security.token_url
    if url is None:
        raise ConfigurationError(
            "sasl.oauthbearer.token.endpoint.url", "is missing: from there this broker has the tokens for other brokers"
        )
    if document_path(url) is None and (login.client_id is None or login.client_secret is None):
        raise ConfigurationError(setting, "lacks clientId and clientSecret, with which this broker asks for tokens")
    found: dict[str, object] = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": login.client_id,
        "sasl.oauthbearer.client.secret": login.client_secret,
        "sasl.oauthbearer.scope": login.scope,
        "https.ca.location": security.token_trust.path,
        "https.ca.pem": security.token_trust.certificates,
    }
    return {key: value for key, value in found.items() if value is not None}


@dataclass(slots=True)
class Protection:
    """The protection of all listeners of a broker."""

    config: ListenersConfig
    rng: random.Random
    counts: AuthenticationCounts = field(default_factory=AuthenticationCounts)
    handshakes: Handshakes = field(default_factory=Handshakes)
    contexts: dict[str, ReloadingContext] = field(default_factory=dict)
    """By the name of the listener."""
    scram_secret: bytes = b""
    published_keys: "dict[str, PublishedKeys]" = field(default_factory=dict)
    """Keys that sign the tokens of OAUTHBEARER, by the name of the listener."""

    def __post_init__(self) -> None:
        """Read all certificates. Raises ConfigurationError."""
        for plan in self.config.plans:
            security = self.config.security_of(plan)
            if plan.protocol.is_encrypted:
                tls = tls_plan(security)
                make = partial(server_context, tls, _CLIENT_AUTH[security.client_auth])
                paths = [security.keystore_location, security.truststore_location]
                self.contexts[plan.name] = ReloadingContext(make, paths, tls.identity or TlsIdentity())
            if plan.protocol.is_sasl and not security.sasl_enabled_mechanisms:
                raise ConfigurationError(
                    "sasl.enabled.mechanisms", f"is missing: nobody could log in to the listener {plan.name}"
                )
            if plan.protocol.is_sasl and OAUTHBEARER in security.sasl_enabled_mechanisms:
                self.published_keys[plan.name] = _published_keys(security, plan.name)

    @property
    def key_files(self) -> frozenset[Path]:
        """The files with private keys."""
        found = {self.config.security_of(plan).keystore_location for plan in self.config.plans}
        return frozenset(path for path in found if path is not None)

    def inter_broker_dialer(self, plain: Connect) -> Dialer:
        """Return what this broker dials other brokers with. Raises ConfigurationError."""
        return self.inter_broker_security().dialer(plain)

    def inter_broker_security(self) -> ClientSecurity:
        """Return the settings of a client by which this broker logs in to others. Raises ConfigurationError."""
        plan = self.config.inter_broker
        security = self.config.security_of(plan)
        given: dict[str, object] = {"security.protocol": plan.protocol.value}
        if plan.protocol.is_encrypted:
            given |= _tls_of_client(security)
        if plan.protocol.is_sasl:
            given |= self._own_login(plan)
        return ClientSecurity.from_settings(given)

    def _own_login(self, plan: ListenerPlan) -> dict[str, object]:
        """Return the settings of a client with which this broker logs in to others. Raises ConfigurationError."""
        security, mechanism = self.config.security_of(plan), self.config.inter_broker_mechanism
        login = security.login(mechanism)
        setting = f"listener.name.{plan.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        if mechanism == OAUTHBEARER:
            return _token_login(security, login, setting)
        if login.username is None or login.password is None:
            raise ConfigurationError(setting, "lacks username and password, with which this broker logs in to others")
        return {"sasl.mechanism": mechanism, "sasl.username": login.username, "sasl.password": login.password}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take over changed certificates and keys, until cancelled. Reports started when keys have been looked for."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_files)
            async with trio.open_nursery() as first_reads:
                for keys in self.published_keys.values():
                    first_reads.start_soon(nursery.start, keys.run)
            task_status.started()

    async def find_secret(self, zookeeper: CoordinationClient) -> None:
        """Take over the secret of the cluster, if there are clients that log in by SCRAM. Raises CoordinationError."""
        securities = [self.config.security_of(plan) for plan in self.config.plans if plan.protocol.is_sasl]
        if any(kind.value in security.sasl_enabled_mechanisms for security in securities for kind in ScramHash):
            self.scram_secret = await find_scram_secret(zookeeper, self.rng)

    async def _follow_files(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            for context in self.contexts.values():
                await trio.to_thread.run_sync(context.look)

    def metrics(self) -> Iterator[Metric]:
        """Collect counts of logins and certificates."""
        return chain(collect_authentications(self.counts), collect_certificates(self.contexts))

    def serve(
        self, plan: ListenerPlan, listener: ConnectionListener, broker: BrokerContext, handle: Handler
    ) -> ServedListener:
        """Return a bound listener with its protection."""
        security = self.config.security_of(plan)
        return ServedListener(
            listener,
            plan.name,
            plan.protocol,
            partial(self._secure, plan, lru_cache(KEPT_USERS)(partial(find_user, security.principal_mapping_rules)))
            if plan.protocol.is_encrypted
            else None,
            partial(SaslAuthenticator, self._sasl_plan(plan, broker, handle)) if plan.protocol.is_sasl else None,
            is_of_brokers=len(self.config.plans) > 1 and plan.name == self.config.inter_broker.name,
        )

    async def _secure(
        self, plan: ListenerPlan, find: Callable[[str], str | None], transport: Transport
    ) -> tuple[Transport, str]:
        assert isinstance(transport, SocketTransport)  # no other network has TLS
        try:
            encrypted, name = await self.handshakes.accept(transport, self.contexts[plan.name].context)
        except AuthenticationError:
            self.counts.failures[plan.name] += 1
            raise
        if plan.protocol.is_sasl:
            return encrypted, ANONYMOUS
        user = ANONYMOUS if name == ANONYMOUS else find(name)
        if user is None:
            encrypted.close()
            self.counts.failures[plan.name] += 1
            raise AuthenticationError(f"no rule of ssl.principal.mapping.rules fits {name[:200]!r}")
        self.counts.successes[plan.name] += 1
        return encrypted, user

    def _sasl_plan(self, plan: ListenerPlan, broker: BrokerContext, handle: Handler) -> SaslPlan:
        security = self.config.security_of(plan)
        passwords = security.plain_users
        begin: dict[str, Callable[[], SaslMechanism]] = {
            "PLAIN": lambda: PlainMechanism(passwords),
            **{kind.value: partial(self._begin_scram, broker, kind) for kind in ScramHash},
        }
        keys = self.published_keys.get(plan.name)
        if keys is not None:
            begin |= {OAUTHBEARER: partial(OAuthBearerMechanism, _token_check(security, keys, broker.clock))}
        return SaslPlan(
            mechanisms={name: begin[name] for name in security.sasl_enabled_mechanisms},
            handle=handle,
            clock=broker.clock,
            counts=self.counts,
            max_request_bytes=security.sasl_server_max_receive_size,
            max_session_ms=security.connections_max_reauth_ms,
            failure_delay_s=self.config.failed_authentication_delay_ms / 1000,
        )

    def _begin_scram(self, broker: BrokerContext, kind: ScramHash) -> ScramExchange:
        nonce = f"{self.rng.getrandbits(NONCE_BITS):x}"
        return ScramExchange(kind, broker.scram.find, self.scram_secret, nonce, broker.scram.shapes(kind))
