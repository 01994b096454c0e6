"""Contexts of TLS, made from PEM in files or in settings, and made again when a file has changed.

Invariants:
- A file that cannot be used any more leaves the last context in force, and is told: new connections go on.
- A context is replaced as a whole: no connection mixes an old certificate with a new key.
"""

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.credentials import Secret
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError

logger = get_logger(__name__)

TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """A certificate chain and its private key: in one file, in two, or as text in PEM. Names are those of settings."""

    certificate_path: Path | None = None
    key_path: Path | None = None
    certificate: str | None = None
    key: Secret | None = None
    key_password: Secret | None = None
    setting: str = "ssl.keystore.location"
    """The setting that errors name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsTrust:
    """Authorities that are trusted: in a file or directory, as text in PEM, or those of the system."""

    path: Path | None = None
    certificates: str | None = None
    setting: str = "ssl.truststore.location"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPlan:
    """Parts of a context."""

    identity: TlsIdentity | None = None
    trust: TlsTrust | None = None
    versions: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    ciphers: str | None = None
    """OpenSSL's list of ciphers of TLS 1.2; None for its default."""


def server_context(plan: TlsPlan, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
    """Return the context of a server. Raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = client_auth
    if plan.identity is None:
        raise ConfigurationError("ssl.keystore.location", "is missing: a server needs a certificate")
    if client_auth is not ssl.CERT_NONE and plan.trust is None:
        raise ConfigurationError(
            "ssl.truststore.location", "is missing: nobody's certificate could be checked as ssl.client.auth demands"
        )
    _fill(context, plan)
    return context


def client_context(plan: TlsPlan, *, checks_name: bool, checks_certificate: bool = True) -> ssl.SSLContext:
    """Return the context of a client. Raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_name and checks_certificate
    context.verify_mode = ssl.CERT_REQUIRED if checks_certificate else ssl.CERT_NONE
    if plan.trust is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _fill(context, plan)
    return context


def trusting_context(trust: TlsTrust) -> ssl.SSLContext | None:
    """Return the context of a client without a certificate of its own, None if it trusts the system's authorities.

    Reads files. Raises ConfigurationError.
    """
    if trust.path is None and trust.certificates is None:
        return None
    return client_context(TlsPlan(trust=trust), checks_name=True)


def _fill(context: ssl.SSLContext, plan: TlsPlan) -> None:
    known = [TLS_VERSIONS[name] for name in plan.versions]
    context.minimum_version, context.maximum_version = min(known), max(known)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if plan.ciphers is not None:
        try:
            context.set_ciphers(plan.ciphers)
        except ssl.SSLError as error:
            raise ConfigurationError("ssl.cipher.suites", "names no cipher that OpenSSL knows") from error
    if plan.trust is not None:
        _load_trust(context, plan.trust)
    if plan.identity is not None:
        _load_identity(context, plan.identity)


def _load_trust(context: ssl.SSLContext, trust: TlsTrust) -> None:
    try:
        if trust.path is not None:
            is_directory = trust.path.is_dir()
            context.load_verify_locations(
                capath=trust.path if is_directory else None, cafile=None if is_directory else trust.path
            )
        if trust.certificates is not None:
            context.load_verify_locations(cadata=trust.certificates)
    except (OSError, ValueError) as error:
        raise ConfigurationError(trust.setting, _fault(trust.path, error, "certificates in PEM")) from error


def _load_identity(context: ssl.SSLContext, identity: TlsIdentity) -> None:
    password = None if identity.key_password is None else identity.key_password.reveal()

    def ask() -> str:
        if password is None:
            raise ValueError("the key is encrypted, and ssl.key.password is missing")
        return password

    try:
        if identity.certificate_path is not None:
            context.load_cert_chain(identity.certificate_path, identity.key_path, ask)
        else:
            key = "" if identity.key is None else identity.key.reveal()
            _load_text(context, f"{key}\n{identity.certificate or ''}\n", ask)
    except (OSError, ValueError) as error:
        wanted = "a private key and its certificate chain in PEM"
        raise ConfigurationError(identity.setting, _fault(identity.certificate_path, error, wanted)) from error


def _load_text(context: ssl.SSLContext, text: str, ask: Callable[[], str]) -> None:
    """Load key and certificates from memory, by way of a file that no other process sees."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=ask)


def _fault(path: Path | None, error: Exception, wanted: str) -> str:
    place = "its text" if path is None else str(path)
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"{place}: the private key does not belong to the certificate"
        return f"{place} does not hold {wanted}: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, OSError):
        return f"{place} cannot be read: {error.strerror}"
    return f"{place}: {error}"


def certificate_end_s(identity: TlsIdentity) -> float:
    """Return the time at which the first certificate of a chain expires, in seconds since 1970.

    0 for one that cannot be read, so that an alert fires.
    """
    from cryptography import x509  # clients, which have no use for it, would take the time and memory, too

    try:
        path = identity.certificate_path
        text = path.read_bytes() if path else (identity.certificate or "").encode()
        return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(text))
    except (ValueError, OSError):  # OpenSSL takes what this library does not read; a file may be gone by now
        return 0.0


class ReloadingContext:
    """A context that is made again when one of its files has changed."""

    def __init__(self, make: Callable[[], ssl.SSLContext], paths: Sequence[Path | None], identity: TlsIdentity) -> None:
        """`make` raises ConfigurationError. So does this, the first time. `identity`: of the context that it makes."""
        self._make = make
        self._paths = [path for path in paths if path is not None]
        self._identity = identity
        self._seen = self._state()
        self.context = make()
        self.end_s = certificate_end_s(identity)
        """Time at which the certificate in force expires, in seconds since 1970."""
        self.failures = 0
        """Changes that could not be taken over."""
        self.reloads = 0

    def look(self) -> None:
        """Take over changed files, if they can be used. Reads files: call it in a thread."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self.context = self._make()
            self.end_s = certificate_end_s(self._identity)
        except ConfigurationError as error:
            self.failures += 1
            logger.error("certificate_not_reloaded", error=str(error), effect="the last one stays in force")
        else:
            self.reloads += 1
            logger.info("certificate_reloaded", paths=[str(path) for path in self._paths])

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [file_state(path) for path in self._paths]


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file, None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
