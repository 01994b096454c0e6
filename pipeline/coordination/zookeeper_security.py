"""Declares the settings that protect connections to ZooKeeper, and the znodes that are created there.

The names of TLS are those of Kafka's brokers, and so is `zookeeper.set.acl`. Kafka takes user and password from a file
of the Java virtual machine; here they are settings. Values may name their place, as `${env:NAME}` (see `credentials`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from pipeline.credentials import Secret, resolved
from pipeline.errors import ConfigurationError
from pipeline.settings import SettingsModel

if TYPE_CHECKING:
    import ssl

PREFIXES = ("zookeeper.auth.", "zookeeper.ssl.", "zookeeper.set.acl")


class ZooKeeperSecurity(SettingsModel):
    """The protection of connections to ZooKeeper, and of znodes. Build it with `from_settings`."""

    service: ClassVar[str] = "ZooKeeper client"

    set_acl: bool = Field(default=False, alias="zookeeper.set.acl")
    """True if znodes are created with ACLs: only their creator may change them, and read those that hold secrets. Give
    all brokers the same user."""
    scheme: Literal["sasl", "digest"] = Field("sasl", alias="zookeeper.auth.scheme")
    """Scheme of authentication: `sasl` (DIGEST-MD5), which ZooKeeper refuses if the password is wrong, or `digest`,
    which needs no list of users in ZooKeeper, and sends the password: use it with TLS only."""
    username: str | None = Field(None, alias="zookeeper.auth.username", min_length=1, pattern=r"^[^:\s]+$")
    """Name of the user in ZooKeeper. Without a name, and without a certificate, the client is a stranger."""
    password: Secret | None = Field(None, alias="zookeeper.auth.password")
    """Password of the user. Write `${env:NAME}`, `${file:PATH:KEY}` or `${directory:DIR:FILE}` to keep it elsewhere."""
    is_encrypted: bool = Field(default=False, alias="zookeeper.ssl.client.enable")
    """True if connections to ZooKeeper use TLS. `zookeeper.connect` then names ZooKeeper's `secureClientPort`."""
    keystore_type: Literal["PEM"] = Field("PEM", alias="zookeeper.ssl.keystore.type")
    """Format of the private key and its certificates. Only `PEM` is read."""
    keystore_location: Path | None = Field(None, alias="zookeeper.ssl.keystore.location")
    """File with the private key and its certificate chain, in PEM. The certificate's name is a user for ACLs. The file
    is read again for every connection."""
    keystore_password: Secret | None = Field(None, alias="zookeeper.ssl.keystore.password")
    """Password of the private key, if that is encrypted."""
    truststore_type: Literal["PEM"] = Field("PEM", alias="zookeeper.ssl.truststore.type")
    """Format of the trusted certificates. Only `PEM` is read."""
    truststore_location: Path | None = Field(None, alias="zookeeper.ssl.truststore.location")
    """File with the certificates of the authorities that may sign those of ZooKeeper's servers, in PEM. By default
    those of the system."""
    identification: Literal["https", "HTTPS", ""] = Field(
        "https", alias="zookeeper.ssl.endpoint.identification.algorithm"
    )
    """Check of the server's name against its certificate: `https`, or empty for none."""

    @classmethod
    def has(cls, key: str) -> bool:
        """True if a setting of this name belongs here, or looks as if it did."""
        return key.startswith(PREFIXES)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Check settings, and take values from where they are kept. Raises ConfigurationError."""
        made = super().from_settings(
            {key: resolved(key, value) if isinstance(value, str) else value for key, value in settings.items()}
        )
        if (made.username is None) != (made.password is None):
            raise ConfigurationError("zookeeper.auth.password", "and zookeeper.auth.username are given together")
        for key in ("zookeeper.ssl.keystore.location", "zookeeper.ssl.truststore.location"):
            if key in settings and not made.is_encrypted:
                raise ConfigurationError(key, "has no effect without zookeeper.ssl.client.enable = true")
        if made.set_acl and not made.has_identity:
            raise ConfigurationError(
                "zookeeper.set.acl",
                "needs a user whose znodes they are: set zookeeper.auth.username and zookeeper.auth.password, or "
                "zookeeper.ssl.keystore.location",
            )
        return made

    def __str__(self) -> str:
        """Name the client as ZooKeeper knows it."""
        if self.username is not None:
            return f"the user {self.username} ({self.scheme})"
        if self.keystore_location is not None:
            return f"the certificate of {self.keystore_location}"
        return "a client without zookeeper.auth.username"

    @property
    def has_identity(self) -> bool:
        """True if ZooKeeper knows the client by a name."""
        return self.username is not None or self.keystore_location is not None

    @property
    def login(self) -> tuple[str, str]:
        """Name and password."""
        assert self.username is not None
        return self.username, "" if self.password is None else self.password.reveal()

    def context(self) -> "ssl.SSLContext | None":
        """Return a context of TLS, None for connections in clear. Reads files. Raises ConfigurationError."""
        if not self.is_encrypted:
            return None
        from pipeline.net.security.tls_context import TlsIdentity, TlsPlan, TlsTrust, client_context

        identity, trust = None, None
        if self.keystore_location is not None:
            identity = TlsIdentity(
                certificate_path=self.keystore_location,
                key_password=self.keystore_password,
                setting="zookeeper.ssl.keystore.location",
            )
        if self.truststore_location is not None:
            trust = TlsTrust(path=self.truststore_location, setting="zookeeper.ssl.truststore.location")
        return client_context(TlsPlan(identity=identity, trust=trust), checks_name=bool(self.identification))


def gathered_zookeeper(settings: Any) -> Any:
    """Return the settings of a service with those of `ZooKeeperSecurity` as one value. Raises ConfigurationError."""
    if not isinstance(settings, Mapping):
        return settings
    own = {key: value for key, value in settings.items() if isinstance(key, str) and ZooKeeperSecurity.has(key)}
    if not own:
        return settings
    others = {key: value for key, value in settings.items() if key not in own}
    return {**others, "zookeeper.security": ZooKeeperSecurity.from_settings(own)}


OPEN_ZOOKEEPER = ZooKeeperSecurity.from_settings({})
"""Connections in clear, of a client without a name, whose znodes are open to everybody."""
