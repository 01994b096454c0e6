"""Certificates of an authority of one's own, for clusters on one machine and for tests. Library: cryptography."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=365)
BACKDATED = timedelta(minutes=5)
"""Time before now from which certificates are valid, so that a slow clock takes them, too."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, in PEM."""

    certificate: str
    key: str = field(repr=False)


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "pipeline authority", *, now: datetime | None = None) -> None:
        """Create a new authority, valid for ten years."""
        self._key = key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        begins = (now or datetime.now(UTC)) - BACKDATED
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + 10 * VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(key, hashes.SHA256())
        )

    @classmethod
    def of_pair(cls, pair: KeyPair) -> Self:
        """Return an authority whose certificate and key were kept. Raises ValueError."""
        key = load_pem_private_key(pair.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is of another kind than those that are made here")  # noqa: TRY004
        authority = cls.__new__(cls)
        authority._key, authority._certificate = key, x509.load_pem_x509_certificate(pair.certificate.encode())
        return authority

    @property
    def pair(self) -> KeyPair:
        """The certificate and the key, which signs for whoever has it."""
        return KeyPair(self.certificate, _key_text(self._key, NoEncryption()))

    @property
    def certificate(self) -> str:
        """The certificate of the authority, in PEM."""
        return self._certificate.public_bytes(Encoding.PEM).decode()

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        unit: str | None = None,
        begins: datetime | None = None,
        ends: datetime | None = None,
        password: str | None = None,
    ) -> KeyPair:
        """Sign a certificate of the common name `name`, for servers and clients, valid for a year unless told.

        `hosts`: names and addresses of a server. `password`: encrypts the key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begins = begins or datetime.now(UTC) - BACKDATED
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name, unit))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends or begins + VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        protection: KeySerializationEncryption = (
            NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        )
        return KeyPair(
            certificate=certificate.public_bytes(Encoding.PEM).decode(),
            key=_key_text(key, protection),
        )


def ends_of(certificate: str) -> datetime:
    """Return when the first certificate of a text in PEM ends. Raises ValueError."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def _key_text(key: ec.EllipticCurvePrivateKey, protection: KeySerializationEncryption) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection).decode()


def _name(common_name: str, unit: str | None = None) -> x509.Name:
    parts = [] if unit is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
