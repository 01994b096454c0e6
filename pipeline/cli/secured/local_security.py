"""Security of clusters on this machine: one authority, a certificate for each server, and users with their settings.

All files lie in one directory that only its owner can read. What exists is kept, so that a cluster can be taken up
again; certificates are renewed before they end. Users and ACLs are written into ZooKeeper before the first broker
starts, as no broker could authenticate whoever created them. A user that exists keeps its ACLs and credentials.
"""

import base64
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from pipeline.cli.secured.certificates import Authority, KeyPair, ends_of
from pipeline.cli.secured.roles import BROKER_USER, HTTP_ROLES, LOCAL_USERS, SUPER_USERS, acls_of
from pipeline.coordination.acl_znodes import AclPattern, AclRule, decode_rules, encode_rules
from pipeline.coordination.embedded import ServerProtection
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.scram_znodes import MIN_ITERATIONS, ScramCredential, ScramHash, salted_password, user_path
from pipeline.coordination.update import update
from pipeline.coordination.znodes import decode_config, encode_config
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.credentials import Secret, resolved
from pipeline.errors import ConfigurationError
from pipeline.net.http.users import SALT_BYTES as HTTP_SALT_BYTES
from pipeline.net.http.users import Role, password_entry

HOSTS = ("127.0.0.1", "localhost", "::1")
RENEWED_BEFORE = timedelta(days=30)
PASSWORD_BYTES = 24
SALT_BYTES = 32
MECHANISM = ScramHash.SHA_512
ZOOKEEPER = "zookeeper"
JAAS_KEY = "scram-sha-512.sasl.jaas.config"
LOGINS = frozenset({JAAS_KEY, "zookeeper.auth.username", "zookeeper.auth.password", "zookeeper.set.acl"})
"""Settings of brokers that need the files that `prepare` creates."""
_JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'


@dataclass(frozen=True, slots=True)
class LocalSecurity:
    """The files in a directory, and the settings that name them."""

    directory: Path

    @property
    def authority_file(self) -> Path:
        """The certificate of the authority, in PEM."""
        return self.directory / "ca.pem"

    def client_file(self, user: str) -> Path:
        """Return the file of client settings of a user, with its password, for the commands."""
        return self.directory / "clients" / f"{user}.properties"

    def librdkafka_file(self, user: str) -> Path:
        """Return the file of the same settings but for HTTP servers: librdkafka refuses those that it does not know."""
        return self.directory / "clients" / f"{user}-librdkafka.properties"

    @property
    def http_users_file(self) -> Path:
        """The users of the HTTP servers, with hashes of the passwords that their client settings have."""
        return self.directory / "http-users"

    def prepare(self, servers: Sequence[str], rng: Random) -> None:
        """Create what is missing: the authority, certificates of servers, and files of users and of client settings.

        Raises ConfigurationError.
        """
        try:
            for directory in (self.directory, self.directory / "clients"):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            authority = self._authority()
            for name in (ZOOKEEPER, *servers):
                self._certify(authority, name)
            for user in LOCAL_USERS:
                if self.client_file(user).exists():
                    password = self._password(user)
                else:
                    password = base64.urlsafe_b64encode(rng.randbytes(PASSWORD_BYTES)).decode()
                settings = self._client_settings(user, password)
                _write_settings(self.librdkafka_file(user), user, settings)
                settings["basic.auth.user.info"] = f"{user}:{password}"
                if user == BROKER_USER:  # for commands with --zookeeper
                    settings |= self._zookeeper_login(password)
                _write_settings(self.client_file(user), user, settings)
            self._add_http_users(rng)
        except (OSError, ValueError) as error:
            raise ConfigurationError("--secure", f"{self.directory} cannot be used: {error}") from error

    def client_settings(self, user: str) -> dict[str, str]:
        """Return the client settings of a user for a service's file. They name the file that has the password."""
        return self._client_settings(user, self._place_of_password(user))

    def broker_settings(self, name: str, port: int) -> dict[str, str]:
        """Return the settings of a broker that protect it. They name the file that has its password."""
        password = self._place_of_password(BROKER_USER)
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{port}",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": ",".join(kind.value for kind in ScramHash),
            "sasl.mechanism.inter.broker.protocol": MECHANISM.value,
            JAAS_KEY: _JAAS.format(user=BROKER_USER, password=password),
            "ssl.keystore.location": str(self._keystore(name)),
            "ssl.truststore.location": str(self.authority_file),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": ";".join(f"User:{user}" for user in SUPER_USERS),
            **self._zookeeper_login(password),
            "zookeeper.set.acl": "true",
        }

    def http_settings(self, name: str) -> dict[str, str]:
        """Return the settings that protect the HTTP server of a service or broker. Its health needs no password."""
        return {
            "http.ssl.keystore.location": str(self._keystore(name)),
            "http.users.file": str(self.http_users_file),
            "http.authentication.skip.paths": "/healthz,/readyz",
        }

    def zookeeper_protection(self) -> ServerProtection:
        """Return the users and the certificate of ZooKeeper. Raises ConfigurationError without `prepare` before."""
        return ServerProtection(
            users={BROKER_USER: Secret(self._password(BROKER_USER))},
            keystore=self._keystore(ZOOKEEPER),
            truststore=self.authority_file,
        )

    def zookeeper_security(self) -> ZooKeeperSecurity:
        """Return what clients of ZooKeeper need, to do as brokers do. Raises ConfigurationError as above."""
        login = self._zookeeper_login(self._place_of_password(BROKER_USER))
        return ZooKeeperSecurity.from_settings({**login, "zookeeper.set.acl": True})

    def told(self) -> dict[str, object]:
        """Return where the files are, for the user of the command."""
        users = [user for user in LOCAL_USERS if user != BROKER_USER]
        return {
            "ca": str(self.authority_file),
            "client_config": {user: str(self.client_file(user)) for user in users},
            "librdkafka_config": {user: str(self.librdkafka_file(user)) for user in users},
            "http_users": str(self.http_users_file),
        }

    async def seed_at(self, zookeeper: str, rng: Random) -> None:
        """Do as `seed` with the ZooKeeper at an address."""
        async with open_zookeeper(zookeeper, security=self.zookeeper_security()) as client:
            await self.seed(client, rng)

    async def seed(self, zookeeper: CoordinationClient, rng: Random) -> None:
        """Write the users that a cluster lacks, and their ACLs. Raises CoordinationError, ConfigurationError."""
        for user in LOCAL_USERS:
            path = user_path(user)
            found = await zookeeper.get_or_none(path)
            settings = {} if found is None else decode_config(path, found.data)
            if MECHANISM.value in settings:
                continue
            rules: defaultdict[AclPattern, set[AclRule]] = defaultdict(set)
            for pattern, rule in acls_of(user):
                rules[pattern].add(rule)
            for pattern, added in rules.items():
                await _add_rules(zookeeper, pattern, added)
            # last, so that a start that was interrupted begins this user again
            await _add_credential(zookeeper, path, self._password(user), rng)

    def _place_of_password(self, user: str) -> str:
        return f"${{file:{self.client_file(user)}:sasl.password}}"

    def _password(self, user: str) -> str:
        return resolved("--secure", self._place_of_password(user))

    def _client_settings(self, user: str, password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM.value,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority_file),
        }

    def _zookeeper_login(self, password: str) -> dict[str, str]:
        return {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(self.authority_file),
            "zookeeper.auth.username": BROKER_USER,
            "zookeeper.auth.password": password,
        }

    def _keystore(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def _add_http_users(self, rng: Random) -> None:
        lines = self.http_users_file.read_text().splitlines() if self.http_users_file.exists() else []
        known = {line.partition(":")[0] for line in lines}
        added = [
            password_entry(user, HTTP_ROLES.get(user, Role.READ), self._password(user), rng.randbytes(HTTP_SALT_BYTES))
            for user in LOCAL_USERS
            if user not in known
        ]
        if added:
            _write_privately(self.http_users_file, "\n".join([*lines, *added]))

    def _authority(self) -> Authority:
        key_file = self.directory / "ca-key.pem"
        if key_file.exists():
            return Authority.of_pair(KeyPair(self.authority_file.read_text(), key_file.read_text()))
        authority = Authority()
        _write_privately(self.authority_file, authority.certificate)
        _write_privately(key_file, authority.pair.key)  # last: without it both are made anew
        return authority

    def _certify(self, authority: Authority, name: str) -> None:
        path = self._keystore(name)
        if path.exists():
            text = path.read_text()
            if ends_of(text[text.index("-----BEGIN CERTIFICATE") :]) > datetime.now(UTC) + RENEWED_BEFORE:
                return
        pair = authority.issue(name, HOSTS)
        _write_privately(path, pair.key + pair.certificate)


def _write_settings(path: Path, user: str, settings: Mapping[str, str]) -> None:
    lines = [f"{key}={value}" for key, value in settings.items()]
    _write_privately(path, "\n".join([f"# Client settings of the user {user}", *lines]))


def _write_privately(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text.rstrip("\n") + "\n")
    unfinished.replace(path)


async def _add_rules(zookeeper: CoordinationClient, pattern: AclPattern, added: set[AclRule]) -> None:
    def decide(found: NodeValue | None) -> bytes | None:
        known = frozenset() if found is None else decode_rules(pattern.path, found.data)
        return None if added <= known else encode_rules(known | added)

    await update(zookeeper, pattern.path, decide)


async def _add_credential(zookeeper: CoordinationClient, path: str, password: str, rng: Random) -> None:
    salt = rng.randbytes(SALT_BYTES)
    salted = salted_password(MECHANISM, password, salt, MIN_ITERATIONS)
    credential = ScramCredential.of_salted_password(MECHANISM, salted, salt, MIN_ITERATIONS)

    def decide(found: NodeValue | None) -> bytes:
        settings = {} if found is None else decode_config(path, found.data)
        return encode_config({**settings, MECHANISM.value: credential.encode()})

    await update(zookeeper, path, decide)
