"""The path of docs/security/path.md: an open cluster becomes a secured one, broker by broker, and no client notices."""

import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import KafkaError, Producer
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.secured.local_security import JAAS_KEY, LocalSecurity
from pipeline.cli.terminal.client_config import CLIENT_CONFIG_VARIABLE, read_client_config
from pipeline.cli.terminal.connect import randomness
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.processes import free_port
from pipeline.settings import parse_addresses
from tests.support.secured_path import RestartableBrokers, Settings, Traffic, restartable_brokers

NUMBERS = (1, 2, 3)
TOPIC = "clicks"
DEADLINE_S = 120


class Site:
    """The brokers' ports and settings, by the steps of the path."""

    def __init__(self, directory: Path, brokers: RestartableBrokers) -> None:
        self.brokers = brokers
        self.security = LocalSecurity(directory / "security")
        self.security.prepare([f"broker-{number}" for number in NUMBERS], randomness())
        self.open_ports = {number: free_port() for number in NUMBERS}
        self.secured_ports = {number: free_port() for number in NUMBERS}
        self.common = {
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "group.initial.rebalance.delay.ms": 0,
            "zookeeper.session.timeout.ms": 6000,
        }

    @property
    def opened(self) -> str:
        """Addresses of the open listeners."""
        return ",".join(f"127.0.0.1:{port}" for port in self.open_ports.values())

    @property
    def secured(self) -> str:
        """Addresses of the secured listeners."""
        return ",".join(f"127.0.0.1:{port}" for port in self.secured_ports.values())

    def settings(self, number: int, step: int) -> Settings:
        """Return the settings of a broker after a step of the page; 0: before."""
        plain = f"PLAINTEXT://127.0.0.1:{self.open_ports[number]}"
        if step == 0:
            return {**self.common, "listeners": plain}
        found = self.security.broker_settings(f"broker-{number}", self.secured_ports[number])
        secured = {key: value for key, value in found.items() if not key.startswith("zookeeper.")}  # a path of its own
        moved = {"security.inter.broker.protocol", "sasl.mechanism.inter.broker.protocol", JAAS_KEY,
                 "authorizer.class.name", "super.users"}  # fmt: skip
        if step == 1:
            kept = {key: value for key, value in secured.items() if key not in moved}
            return {**self.common, **kept, "listeners": f"{plain},{secured['listeners']}"}
        if step == 2:
            listeners = f"{plain},{secured['listeners']}"
            return {**self.common, **secured, "listeners": listeners, "allow.everyone.if.no.acl.found": "true"}
        return {**self.common, **secured}

    async def roll(self, step: int) -> None:
        """Restart all brokers one by one, each when all replicas are in sync."""
        for number in NUMBERS:
            await self.brokers.stop(number)
            await self.brokers.start(number, self.settings(number, step))
            if step < 3:
                await self.wait_until_in_sync(self.opened, OPEN_SECURITY)
            else:
                await self.wait_until_in_sync(self.secured, read_client_config(self.security.client_file("admin")))

    async def wait_until_in_sync(self, bootstrap: str, security: ClientSecurity) -> None:
        """Wait until each partition has all replicas in sync and a leader."""
        config = ClientConfig(bootstrap=parse_addresses(bootstrap), security=security)
        with trio.fail_after(DEADLINE_S):
            async with open_cluster(config) as cluster:
                while True:
                    topics = (await list_topics(cluster)).values()
                    parts = [part for topic in topics for part in topic.partitions.values()]
                    if parts and all(len(part.isr) == 3 and part.leader is not None for part in parts):
                        return
                    await trio.sleep(0.05)


def pipeline(*arguments: str, env: dict[str, str] | None = None, code: int = 0) -> str:
    # a command that chooses a client config sets the variable; here it must not stay
    ended = CliRunner().invoke(app, arguments, env={**(env or {}), CLIENT_CONFIG_VARIABLE: None})
    assert ended.exit_code == code, (arguments, ended.output, ended.exception)
    return ended.output


async def command(*arguments: str, env: dict[str, str] | None = None) -> str:
    return await trio.to_thread.run_sync(partial(pipeline, *arguments, env=env))


def properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def refusal(settings: dict[str, Any]) -> KafkaError | None:
    """What a producer with these settings is told; None if its record is taken."""
    outcomes: list[KafkaError | None] = []
    errors: list[KafkaError] = []
    producer = Producer({**settings, "log_level": 0, "message.timeout.ms": 10_000, "error_cb": errors.append})
    producer.produce(TOPIC, "guest 0", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(30)
    return errors[0] if errors else outcomes[0]


@pytest.mark.long
@pytest.mark.parametrize("as_processes", [False, True], ids=["in this process", "processes"])
async def test_an_open_cluster_is_secured_without_downtime(tmp_path: Path, as_processes: bool) -> None:
    async with restartable_brokers(tmp_path, as_processes=as_processes) as brokers:
        site = Site(tmp_path, brokers)
        async with trio.open_nursery() as starting:
            for number in NUMBERS:
                starting.start_soon(brokers.start, number, site.settings(number, 0))
        await command("topic", "create", TOPIC, "--partitions", "3", "-b", site.opened)
        before = Traffic({"bootstrap.servers": site.opened}, TOPIC, "before")
        of_app = {"bootstrap.servers": site.secured, **properties(site.security.librdkafka_file("app"))}
        after = Traffic(of_app, TOPIC, "after")
        async with before.running():
            await site.roll(1)
            for user in ("broker", "admin", "app"):
                password = properties(site.security.librdkafka_file(user))["sasl.password"]
                arguments = ("user", "create", user, "--password-env", "NEW_PASSWORD", "-b", site.opened)
                await command(*arguments, env={"NEW_PASSWORD": password})
            await site.roll(2)
            async with after.running():
                await before.finish()
                admin = ("--client-config", str(site.security.client_file("admin")), "-b", site.secured)
                everyone = ("--allow-principal", "User:*", "--topic", TOPIC)
                allow = ("acl", "add", "--allow-principal", "User:app", "--topic", TOPIC)
                await command("acl", "add", *everyone, *admin)
                await command(*allow, "--producer", *admin)
                await command(*allow, "--consumer", "--group", "after", *admin)
                await command("acl", "remove", *everyone, *admin)
                await site.roll(3)
                await _wait(lambda: len(after.read) > 0)
        for traffic in (before, after):
            assert traffic.errors == []
            assert len(traffic.acknowledged) > 100
            assert traffic.acknowledged <= traffic.read
        for port in site.open_ports.values():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5).close()
        await _check_strangers(site, of_app, admin)


async def _check_strangers(site: Site, of_app: dict[str, str], admin: tuple[str, ...]) -> None:
    """Nobody comes in without a password, and a user without ACLs may do nothing."""
    wrong = await trio.to_thread.run_sync(refusal, {**of_app, "sasl.password": "guessed"})
    assert wrong is not None and wrong.code() == KafkaError._AUTHENTICATION
    await command("user", "create", "guest", "--password-env", "NEW_PASSWORD", *admin, env={"NEW_PASSWORD": "guest"})
    guest = {**of_app, "sasl.username": "guest", "sasl.password": "guest"}
    with trio.fail_after(DEADLINE_S):
        while (told := await trio.to_thread.run_sync(refusal, guest)) is not None:
            if told.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
    pytest.fail("a user without ACLs writes")


async def _wait(condition: Any) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.05)
