"""A secured broker in this process, and clients of it that send what they like: named users, and bytes of strangers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.broker.requests.context import BrokerContext
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.secured.certificates import Authority
from pipeline.model import HostPort
from pipeline.net.connection_pool import open_connection_pool
from pipeline.net.security.client_security import ClientSecurity
from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType
from pipeline.protocol.schema import Message
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker

AUTHORITY = Authority()
PASSWORDS = {"admin": "boss", "alice": "pencil", "mallory": "evil", "broker": "b2b"}
"""Users of PLAIN; admin and broker are super users."""
DEADLINE_S = 60

Ask = Callable[[Message], Awaitable[Any]]
"""Sends a request as a user, and returns the answer."""


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running broker. `addresses` are those of its listeners, by name."""

    directory: Path
    context: BrokerContext
    addresses: Mapping[str, HostPort]
    zookeeper: MemoryZooKeeper

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[Ask]:
        """Log in as a user of PASSWORDS."""
        security = ClientSecurity.from_settings(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": PASSWORDS[name],
            }
        )
        async with open_connection_pool(name, dialer=security.dialer()) as pool:
            yield lambda message: pool.request(self.addresses["SASL_PLAINTEXT"], message, timeout_s=DEADLINE_S)


def jaas() -> str:
    """Return the passwords in Kafka's form."""
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    return f'x.PlainLoginModule required username="broker" password="{PASSWORDS["broker"]}" {users};'


def settings_of(directory: Path) -> dict[str, Any]:
    """Return the settings of a broker that is secured as docs/security.md says."""
    broker = AUTHORITY.issue("broker-1", ["127.0.0.1", "localhost"])
    (directory / "broker.pem").write_text(broker.key + broker.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    return {
        "broker.id": 1,
        "log.dirs": str(directory / "logs"),
        "zookeeper.connect": "memory:0",
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")),
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/L",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": jaas(),
        "connection.failed.authentication.delay.ms": "10",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin;User:broker",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
    }


@asynccontextmanager
async def secured_broker(
    directory: Path, zookeeper: MemoryZooKeeper | None = None, **more: Any
) -> AsyncIterator[SecuredBroker]:
    """Run a broker; `more` settings have underscores instead of points."""
    given = {key.replace("_", "."): value for key, value in more.items()}
    config = BrokerConfig.from_settings(settings_of(directory) | given)
    zookeeper = zookeeper or MemoryZooKeeper()
    async with zookeeper.open() as client, serving_broker(config, client) as handle:
        assert handle.parts is not None
        context = handle.parts.context
        yield SecuredBroker(directory, context, context.view.brokers[config.broker_id].addresses, zookeeper)


async def create(ask: Ask, *topics: str) -> None:
    """Create topics of one partition."""
    wanted = [CreatableTopic(name=topic, num_partitions=1, replication_factor=1) for topic in topics]
    answer = await ask(CreateTopicsRequest(topics=wanted))
    assert all(result.error_code == 0 for result in answer.topics), answer


async def allow(
    ask: Ask,
    kind: AclResourceType,
    name: str,
    *operations: AclOperation,
    user: str = "alice",
    host: str = "*",
    permission: AclPermission = AclPermission.ALLOW,
    pattern_type: AclPatternType = AclPatternType.LITERAL,
) -> None:
    """Add a rule for each operation."""
    creations = [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern_type,
            principal=f"User:{user}",
            host=host,
            operation=operation,
            permission_type=permission,
        )
        for operation in operations
    ]
    answer = await ask(CreateAclsRequest(creations=creations))
    assert all(result.error_code == 0 for result in answer.results), answer
