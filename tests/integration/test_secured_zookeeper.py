"""A real ZooKeeper with users, ACLs and TLS, and clients that have or lack what it asks for."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.coordination.acl_migration import migrate_acls
from pipeline.coordination.embedded import ServerProtection, ZooKeeperProcess
from pipeline.coordination.interface import CreateNode, SessionState
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.credentials import Secret
from pipeline.errors import (
    ConfigurationError,
    CoordinationRefusedError,
    CoordinationUnavailableError,
)
from tests.support.secured_zookeeper import (
    AUTHORITY,
    BROKER,
    OTHER,
    PASSWORD,
    acl_of,
    encrypted,
    expire,
    protected,
    tls_settings,
)
from tests.support.zookeeper_services import soon

pytestmark = pytest.mark.long

ALL, READ = 31, 1
SECURED = {"zookeeper.set.acl": True}
READABLE = {"sasl:broker": ALL, "world:anyone": READ}
PRIVATE = {"sasl:broker": ALL}
OPEN = {"world:anyone": ALL}


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A server in clear that takes strangers, too: ACLs alone protect its znodes."""
    users = {"broker": Secret(PASSWORD), "other": Secret(OTHER["zookeeper.auth.password"])}
    protection = ServerProtection(users=users, requires_user=False)
    with ZooKeeperProcess(tmp_path_factory.mktemp("lenient"), protection=protection) as process:
        yield process


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A server that serves TLS and users alone."""
    directory = tmp_path_factory.mktemp("strict")
    with ZooKeeperProcess(directory, protection=encrypted(directory, requires_user=True)) as process:
        yield process


def tls(process: ZooKeeperProcess) -> Mapping[str, Any]:
    return tls_settings(process.directory)


def opened(
    process: ZooKeeperProcess, chroot: str, *settings: Mapping[str, Any], timeout_ms: int = 20_000
) -> AbstractAsyncContextManager[ZooKeeper]:
    return open_zookeeper(f"{process.connect}/{chroot}", connect_timeout_ms=timeout_ms, security=protected(*settings))


async def test_znodes_get_the_acls_that_kafka_gives_them(lenient: ZooKeeperProcess) -> None:
    async with opened(lenient, "acls", BROKER, SECURED) as client:
        await client.create("/config/users/alice", b"secret")
        await client.create("/config/topics/t", b"{}")
        await client.create("/brokers/ids/1", ephemeral=True)
        await client.create("/isr_change_notification/change_", sequential=True)
        await client.transaction([CreateNode(path="/config/brokers"), CreateNode(path="/config/brokers/1")])
        for path in ("/", "/config", "/config/topics/t", "/brokers", "/brokers/ids/1"):
            assert await acl_of(client, path) == READABLE, path
        assert await acl_of(client, "/isr_change_notification/change_0000000000") == READABLE
        for path in ("/config/users", "/config/users/alice", "/config/brokers", "/config/brokers/1"):
            assert await acl_of(client, path) == PRIVATE, path
        for path in ("/consumers", "/mirrors"):
            assert await acl_of(client, path) == OPEN, path


@pytest.mark.parametrize("stranger", [{}, OTHER, {**BROKER, "zookeeper.auth.scheme": "digest"}])
async def test_others_read_what_is_no_secret_and_change_nothing(
    lenient: ZooKeeperProcess, stranger: dict[str, Any]
) -> None:
    async with opened(lenient, "strangers", BROKER, SECURED) as owner, opened(lenient, "strangers", stranger) as other:
        if await owner.exists("/config/users/alice") is None:
            await owner.create("/config/users/alice", b"secret")
            await owner.create("/controller", b"1")
        assert (await other.get("/controller")).data == b"1"
        for refused in (
            lambda: other.get("/config/users/alice"),
            lambda: other.children("/config/users"),
            lambda: anext(other.watch_data("/config/users/alice")),
            lambda: other.set("/controller", b"2"),
            lambda: other.delete("/controller"),
            lambda: other.create("/brokers/ids/7"),
            lambda: other.create("/config/users/mallory"),
            lambda: other.transaction([CreateNode(path="/kafka-acl")]),
        ):
            with pytest.raises(CoordinationRefusedError, match="ACL of this znode refuses") as refusal:
                await refused()
            assert "zookeeper.auth.username" in str(refusal.value)
            assert PASSWORD not in str(refusal.value)
        assert await other.create("/consumers/g", b"") == "/consumers/g"
        await other.delete("/consumers/g")
        assert (await owner.get("/controller")).data == b"1"


async def test_digest_needs_no_users_at_the_server(lenient: ZooKeeperProcess) -> None:
    digest = {"zookeeper.auth.scheme": "digest"}
    async with opened(lenient, "digest", BROKER, digest, SECURED) as client:
        await client.create("/config/users/alice", b"secret")
        (user,) = await acl_of(client, "/config/users/alice")
        assert user.startswith("digest:broker:")
        async with opened(lenient, "digest", BROKER, digest) as again:
            assert (await again.get("/config/users/alice")).data == b"secret"
        wrong = {**BROKER, "zookeeper.auth.password": "wrong"}
        async with opened(lenient, "digest", wrong, digest) as other:
            with pytest.raises(CoordinationRefusedError):
                await other.get("/config/users/alice")


async def test_a_certificate_is_a_user(lenient: ZooKeeperProcess, tmp_path: Path) -> None:
    protection = encrypted(tmp_path, requires_user=False)
    issued = AUTHORITY.issue("broker-of-site")
    (tmp_path / "client.pem").write_text(issued.key + issued.certificate)
    certificate = {"zookeeper.ssl.keystore.location": str(tmp_path / "client.pem")}
    async with ZooKeeperProcess(tmp_path / "zookeeper", protection=protection) as process:
        async with opened(process, "tls", tls_settings(tmp_path), certificate, SECURED) as client:
            await client.create("/config/users/alice", b"secret")
            assert await acl_of(client, "/config/users/alice") == {"x509:CN=broker-of-site": ALL}
        async with opened(process, "tls", tls_settings(tmp_path)) as other:
            with pytest.raises(CoordinationRefusedError):
                await other.get("/config/users/alice")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**BROKER, "zookeeper.auth.password": "wrong"}, r"refuses the user broker \(sasl\)"),
        ({**BROKER, "zookeeper.auth.username": "nobody"}, r"refuses the user nobody \(sasl\)"),
        ({}, "refuses a client without zookeeper.auth.username: it serves users of SASL only"),
        ({**BROKER, "zookeeper.auth.scheme": "digest"}, r"refuses the user broker \(digest\)"),
    ],
)
async def test_who_has_no_password_is_refused_at_once(
    strict: ZooKeeperProcess, settings: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CoordinationRefusedError, match=said) as refusal, trio.fail_after(60):
        async with opened(strict, "refused", tls(strict), settings):
            pass
    assert PASSWORD not in f"{refusal.value!r}{capsys.readouterr()}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zookeeper.ssl.client.enable": True}, "nobody who is trusted has signed the certificate"),
        ({}, "If it serves TLS, set zookeeper.ssl.client.enable"),
    ],
)
async def test_a_connection_that_cannot_be_protected_is_not_made(
    strict: ZooKeeperProcess, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(CoordinationUnavailableError, match=said):
        async with opened(strict, "untrusted", BROKER, settings, timeout_ms=1500):
            pass


async def test_a_server_of_another_name_is_refused_unless_names_are_not_checked(tmp_path: Path) -> None:
    protection = encrypted(tmp_path, requires_user=True, host="zookeeper.example")
    async with ZooKeeperProcess(tmp_path / "zookeeper", protection=protection) as process:
        with pytest.raises(CoordinationUnavailableError, match="is for another name"):
            async with opened(process, "named", BROKER, tls_settings(tmp_path), timeout_ms=1500):
                pass
        unchecked = {"zookeeper.ssl.endpoint.identification.algorithm": ""}
        async with opened(process, "named", BROKER, tls_settings(tmp_path), unchecked) as client:
            await client.create("/a")


async def test_many_requests_at_once_are_answered_over_tls(strict: ZooKeeperProcess) -> None:
    async with opened(strict, "many", BROKER, tls(strict)) as client:
        await client.create("/a", bytes(200))
        with trio.fail_after(60):
            for _ in range(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(client.get, "/a")


async def test_a_new_session_is_authenticated_and_watches_go_on(strict: ZooKeeperProcess) -> None:
    async with opened(strict, "expiry", BROKER, tls(strict), SECURED) as client:
        await client.create("/config/users/alice", b"1")
        await client.create("/brokers/ids/1", ephemeral=True)
        values, events, former = client.watch_data("/config/users/alice"), client.sessions(), client.session_id
        assert await soon(anext(values)) is not None
        await trio.to_thread.run_sync(expire, client)
        with trio.fail_after(60):
            async for event in events:
                if event.state is SessionState.CONNECTED and event.session_id != former:
                    break
        await client.create("/brokers/ids/1", ephemeral=True)
        await client.set("/config/users/alice", b"2")
        with trio.fail_after(60):
            async for value in values:
                if value is not None and value.data == b"2":
                    break
        assert await acl_of(client, "/brokers/ids/1") == READABLE


async def test_a_client_waits_for_the_right_password_and_goes_on_with_it(tmp_path: Path) -> None:
    right = ServerProtection(users={"broker": Secret(PASSWORD)})
    process = ZooKeeperProcess(tmp_path, protection=right)
    async with process, opened(process, "rotated", BROKER, SECURED) as client:
        await client.create("/config/users/alice", b"1")
        refusals = client._session.history.changed
        await process.stop()
        process.protection = replace(right, users={"broker": Secret("another")})
        await process.start()
        with trio.fail_after(60):
            while not client._session.is_refused:
                await refusals.wait()
        with trio.move_on_after(1):  # waits, as without a connection
            await client.get("/config/users/alice")
            pytest.fail("a refused client read a znode")
        await process.stop()
        process.protection = right
        await process.start()
        with trio.fail_after(60):
            assert (await client.get("/config/users/alice")).data == b"1"
            await client.create("/brokers/ids/1", ephemeral=True)
        assert client._session.fault is None


@asynccontextmanager
async def open_site(process: ZooKeeperProcess, chroot: str) -> AsyncIterator[ZooKeeper]:
    """Znodes as open brokers leave them."""
    async with opened(process, chroot, {}) as client:
        for path in ("/brokers/ids", "/brokers/topics/t/partitions/0/state", "/config/users/alice", "/cluster/id"):
            await client.create(path, b"{}")
        for number in range(300):
            await client.create(f"/config/topics/t{number}")
        yield client


async def migrate(client: ZooKeeper, *, is_secured: bool) -> dict[str, int]:
    return {root: count async for root, count in migrate_acls(client, is_secured=is_secured)}


async def test_open_znodes_are_secured_and_opened_again(lenient: ZooKeeperProcess) -> None:
    async with open_site(lenient, "migrated") as stranger, opened(lenient, "migrated", BROKER) as client:
        counts = await migrate(client, is_secured=True)
        assert counts == {"/": 1, "/brokers": 7, "/cluster": 2, "/config": 304}
        assert await acl_of(client, "/") == READABLE
        assert await acl_of(client, "/brokers/topics/t/partitions/0/state") == READABLE
        assert await acl_of(client, "/config/topics/t299") == READABLE
        assert await acl_of(client, "/config/users") == PRIVATE
        assert await acl_of(client, "/config/users/alice") == PRIVATE
        assert await acl_of(client, "/consumers") == OPEN
        with pytest.raises(CoordinationRefusedError):
            await stranger.create("/brokers/ids/1")
        assert await migrate(client, is_secured=True) == counts
        async with opened(lenient, "migrated", OTHER) as other:
            with pytest.raises(CoordinationRefusedError):
                await migrate(other, is_secured=False)
        await migrate(client, is_secured=False)
        assert await acl_of(client, "/config/users/alice") == OPEN
        await stranger.create("/brokers/ids/1")


async def test_a_migration_that_was_cut_short_is_completed_by_another(lenient: ZooKeeperProcess) -> None:
    async with open_site(lenient, "halves"), opened(lenient, "halves", BROKER) as client:
        with trio.CancelScope() as scope:
            async for root, _ in migrate_acls(client, is_secured=True):
                if root == "/brokers":
                    scope.cancel()
        assert await acl_of(client, "/config/users/alice") == OPEN
        await migrate(client, is_secured=True)
        assert await acl_of(client, "/config/users/alice") == PRIVATE


def test_the_users_are_in_a_file_that_nobody_else_reads(strict: ZooKeeperProcess) -> None:
    path = strict.directory / "users.jaas"
    assert PASSWORD in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    command = Path(f"/proc/{strict.pid}/cmdline").read_text()
    assert PASSWORD not in command
    assert PASSWORD not in (strict.directory / "zoo.cfg").read_text() + strict.log_path.read_text()


@pytest.mark.parametrize("password", ['quo"te', "two words", "back\\slash"])
async def test_a_password_that_the_file_of_users_cannot_hold_is_refused(tmp_path: Path, password: str) -> None:
    process = ZooKeeperProcess(tmp_path, protection=ServerProtection(users={"broker": Secret(password)}))
    with pytest.raises(ConfigurationError, match="ZooKeeper's users") as refusal:
        await process.start()
    assert password not in str(refusal.value)
