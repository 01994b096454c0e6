"""A broker with a listener of each protocol, all SASL mechanisms and an authorizer, for clients of all kinds."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import trio
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.secured.certificates import Authority
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker
from tests.support.token_authority import TokenAuthority

LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
MECHANISMS = ("PLAIN", *SCRAMS, "OAUTHBEARER")
USER, PASSWORD = "alice", "pencil"
KEY = "first"
START_S = 60.0


@dataclass(frozen=True, slots=True)
class SecuredService:
    """Bootstrap addresses by listener, the authority of tokens, and files of certificates."""

    addresses: Mapping[str, str]
    tokens: TokenAuthority
    directory: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority."""
        return self.directory / "ca.pem"

    @property
    def certificate(self) -> Path:
        """Key and certificate of the user."""
        return self.directory / "alice.pem"

    def token(self) -> str:
        """A token of the user."""
        return self.tokens.token(KEY, sub=USER, iat=int(time.time()), exp=int(time.time()) + 600)


def _settings(directory: Path, jwks_url: str) -> dict[str, str]:
    certificates = Authority()
    broker = certificates.issue("broker-1", ["127.0.0.1", "localhost"])
    user = certificates.issue(USER)
    (directory / "broker.pem").write_text(broker.key + broker.certificate)
    (directory / "alice.pem").write_text(user.key + user.certificate)
    (directory / "ca.pem").write_text(certificates.certificate)
    return {
        "broker.id": "1",
        "log.dirs": str(directory / "logs"),
        "zookeeper.connect": "memory:0",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f'x.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "sasl.oauthbearer.jwks.endpoint.url": jwks_url,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
        "connection.failed.authentication.delay.ms": "10",
    }


@contextmanager
def secured_service(directory: Path, **more: str) -> Iterator[SecuredService]:
    """Serve until the block ends, in a thread. Dots of settings are written as underscores."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens = TokenAuthority()
    tokens.add(KEY, "RS256")
    started: Queue[tuple[dict[str, str], trio.lowlevel.TrioToken, trio.CancelScope] | BaseException] = Queue()
    with tokens.serving(sub=USER, iat=int(time.time())) as url:
        given = {key.replace("_", "."): value for key, value in more.items()}
        config = BrokerConfig.from_settings(_settings(directory, f"{url}/keys") | given)

        async def serve() -> None:
            try:
                with trio.CancelScope() as scope:
                    async with (
                        MemoryZooKeeper().open() as zookeeper,
                        serving_broker(config, zookeeper) as handle,
                    ):
                        assert handle.parts is not None
                        found = handle.parts.context.view.brokers[config.broker_id].addresses
                        addresses = {name: str(address) for name, address in found.items()}
                        started.put((addresses, trio.lowlevel.current_trio_token(), scope))
                        await trio.sleep_forever()
            except BaseException as error:
                started.put(error)
                raise

        thread = threading.Thread(target=trio.run, args=[serve])
        thread.start()
        begun = started.get(timeout=START_S)
        if isinstance(begun, BaseException):
            raise begun
        addresses, token, scope = begun
        try:
            make_users(addresses["PLAINTEXT"])
            yield SecuredService(addresses, tokens, directory)
        finally:
            trio.from_thread.run_sync(scope.cancel, trio_token=token)
            thread.join()


def make_users(bootstrap: str) -> None:
    """Credentials of SCRAM."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for mechanism in SCRAMS.values():
        credential = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([credential]).values():
            done.result(30)
