"""TLS between our client and our server: data as over plain sockets, and sentences where it fails."""

import os
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from pipeline.cli.secured.certificates import Authority, KeyPair
from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError, ConfigurationError, NetworkError
from pipeline.model import ANONYMOUS, FileRegion, HostPort, SecurityProtocol
from pipeline.net import server as server_module
from pipeline.net.answers import Peer
from pipeline.net.connection_pool import ConnectionPool, open_connection_pool
from pipeline.net.dialing import Dialer
from pipeline.net.network import SOCKETS
from pipeline.net.security import tls
from pipeline.net.security.tls import Handshakes, TlsTransport
from pipeline.net.security.tls_context import (
    ReloadingContext,
    TlsIdentity,
    TlsPlan,
    TlsTrust,
    certificate_end_s,
    client_context,
    server_context,
)
from pipeline.net.server import ServedListener, Server, ServerConfig
from pipeline.net.transport import SocketTransport, Transport, connect
from pipeline.protocol.api import API
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.support.sockets import tcp_pair

AUTHORITY = Authority()
SERVER = AUTHORITY.issue("broker-1", ["localhost", "127.0.0.1"])
ALICE = AUTHORITY.issue("alice", unit="logs")
TRUST = TlsTrust(certificates=AUTHORITY.certificate)


def identity(made: KeyPair, **fields: Any) -> TlsIdentity:
    return TlsIdentity(certificate=made.certificate, key=Secret(made.key), **fields)


def for_server(made: KeyPair = SERVER, client_auth: ssl.VerifyMode = ssl.CERT_OPTIONAL, **plan: Any) -> ssl.SSLContext:
    return server_context(TlsPlan(identity=identity(made), trust=TRUST, **plan), client_auth)


def for_client(made: KeyPair | None = None, trust: TlsTrust | None = TRUST, **plan: Any) -> ssl.SSLContext:
    known = None if made is None else identity(made)
    return client_context(TlsPlan(identity=known, trust=trust, **plan), checks_name=True)


@pytest.fixture(autouse=True)
def handshakes_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests wait for must come by itself, not by the end of a handshake's time."""
    monkeypatch.setattr(tls, "HANDSHAKE_S", 600)
    monkeypatch.setattr(server_module, "STRANGER_S", 600)


@asynccontextmanager
async def served(context: ssl.SSLContext, handle: Any = None) -> AsyncIterator[tuple[HostPort, Server]]:
    handshakes = Handshakes()

    def answer(request: Any, peer: Peer) -> Any:
        if isinstance(request.body, ApiVersionsRequest):
            from pipeline.broker.requests.handlers import api_versions

            return api_versions.describe(API.values())
        return MetadataResponse(cluster_id=peer.principal) if handle is None else handle(request)

    async def secure(transport: Transport) -> tuple[Transport, str]:
        assert isinstance(transport, SocketTransport)
        return await handshakes.accept(transport, context)

    server = Server(answer, API, ServerConfig(max_request_bytes=1 << 26, max_connections=3000, max_idle_s=600))
    (listener,) = await SOCKETS.listen(HostPort("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [ServedListener(listener, "SSL", SecurityProtocol.SSL, secure)])
        yield HostPort("127.0.0.1", listener.port), server
        nursery.cancel_scope.cancel()


def dialer(context: ssl.SSLContext, hostname: str = "localhost") -> Dialer:
    handshakes = Handshakes()

    async def dial(address: HostPort) -> Transport:
        return await handshakes.connect(await connect(address), context, hostname)

    return Dialer(dial)


async def who(pool: ConnectionPool, address: HostPort) -> str:
    answer: MetadataResponse = await pool.request(address, MetadataRequest(), timeout_s=60)
    return answer.cluster_id or ""


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_client_is_known_by_its_certificate(version: str) -> None:
    async with served(for_server()) as (address, _):
        async with open_connection_pool("test", dialer(for_client(versions=[version]))) as pool:
            assert await who(pool, address) == ANONYMOUS
        async with open_connection_pool("test", dialer(for_client(ALICE, versions=[version]))) as pool:
            assert await who(pool, address) == "CN=alice,OU=logs"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_records_and_files_of_all_sizes_arrive_whole(tmp_path: Path, version: str) -> None:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(3_000_000))
    received: list[bytes] = []
    regions = [(0, 1), (5, 4096), (10, 70_000), (100, 2_500_000)]

    def handle(request: Any) -> Any:
        if isinstance(request.body, ProduceRequest):
            received.append(bytes(request.body.topic_data[0].partition_data[0].records))  # type: ignore[arg-type]
            return ProduceResponse()
        data = [PartitionData(records=FileRegion(file, position, size)) for position, size in regions]
        data += [PartitionData(records=b"x" * size) for size in (0, 1, 65_536, 1_000_000)]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=data)])

    with path.open("rb") as file:
        async with (
            served(for_server(versions=[version]), handle) as (address, _),
            open_connection_pool("test", dialer(for_client())) as pool,
        ):
            for size in (1, 16_384, 100_000, 20_000_000):
                sent = os.urandom(size)
                data = PartitionProduceData(index=0, records=sent)
                request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(partition_data=[data])])
                await pool.request(address, request, timeout_s=60)
                assert received.pop() == sent
            answer = await pool.request(address, FetchRequest(), timeout_s=60)
    whole = path.read_bytes()
    found: list[bytes] = [bytes(each.records) for each in answer.responses[0].partitions]
    assert found[:4] == [whole[position : position + size] for position, size in regions]
    assert list(map(len, found[4:])) == [0, 1, 65_536, 1_000_000]


def faulty(**fields: Any) -> KeyPair:
    return AUTHORITY.issue("broker-1", ["localhost"], **fields)


TODAY = datetime.now(UTC)
EXPIRED = faulty(begins=TODAY - timedelta(days=9), ends=TODAY - timedelta(days=1))
UNBORN = faulty(begins=TODAY + timedelta(days=1))


@pytest.mark.parametrize(
    ("context", "hostname", "trust", "said"),
    [
        (for_server(EXPIRED), "localhost", TRUST, "has expired"),
        (for_server(UNBORN), "localhost", TRUST, "not valid yet"),
        (for_server(), "elsewhere", TRUST, "for another name"),
        (
            for_server(),
            "localhost",
            TlsTrust(certificates=Authority("other").certificate),
            "nobody who is trusted",
        ),
        (for_server(client_auth=ssl.CERT_REQUIRED, versions=["TLSv1.2"]), "localhost", TRUST, "ended the handshake"),
    ],
)
async def test_what_is_wrong_with_a_server_is_said(
    context: ssl.SSLContext, hostname: str, trust: TlsTrust, said: str
) -> None:
    async with (
        served(context) as (address, server),
        open_connection_pool("test", dialer(for_client(trust=trust), hostname)) as pool,
    ):
        with pytest.raises(AuthenticationError, match=said):
            await who(pool, address)
        with trio.fail_after(60):
            while server.statistics.open_connections:
                await trio.sleep(0.01)
        assert server.statistics.refused_strangers == 1


async def test_the_server_says_what_is_wrong_with_a_client(caplog: pytest.LogCaptureFixture) -> None:
    stranger = Authority("other").issue("mallory")
    expired = AUTHORITY.issue("alice", begins=TODAY - timedelta(days=9), ends=TODAY - timedelta(days=1))
    async with served(for_server(client_auth=ssl.CERT_REQUIRED)) as (address, server):
        for number, made in enumerate([None, stranger, expired], 1):
            async with open_connection_pool("test", dialer(for_client(made))) as pool:
                with pytest.raises((AuthenticationError, NetworkError)):
                    await who(pool, address)
            with trio.fail_after(60):
                while server.statistics.refused_strangers < number:
                    await trio.sleep(0.01)
        async with open_connection_pool("test", dialer(for_client(ALICE))) as pool:
            assert await who(pool, address) == "CN=alice,OU=logs"
    for said in ("sent no certificate", "nobody who is trusted", "has expired"):
        assert said in caplog.text


async def test_a_client_that_speaks_no_tls_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async with served(for_server()) as (address, server), open_connection_pool("test") as pool:
        with pytest.raises(Exception, match=r"TLS|closed|lost"):
            await who(pool, address)
        with trio.fail_after(60):
            while not server.statistics.refused_strangers:
                await trio.sleep(0.01)
    assert "does not speak TLS" in caplog.text


async def test_a_server_that_speaks_no_tls_is_named() -> None:
    async def greet(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, greet, [listener])
        address = HostPort("127.0.0.1", listener.socket.getsockname()[1])
        async with open_connection_pool("test", dialer(for_client())) as pool:
            with pytest.raises(AuthenticationError, match="does not speak TLS"):
                await who(pool, address)
        nursery.cancel_scope.cancel()


async def test_a_handshake_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.2)
    async with served(for_server()) as (address, server):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            with trio.fail_after(60):
                assert await stream.receive_some() == b""
        assert server.statistics.refused_strangers == 1


async def test_handshakes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "MAX_WAITING_HANDSHAKES", 3)
    async with served(for_server()) as (address, server):
        silent = [await trio.open_tcp_stream(address.host, address.port) for _ in range(3)]
        with trio.fail_after(60):
            while server.statistics.open_connections < 3:
                await trio.sleep(0.01)
        async with open_connection_pool("test", dialer(for_client())) as pool:
            with pytest.raises((AuthenticationError, NetworkError)):
                await who(pool, address)
        for stream in silent:
            await stream.aclose()
        with trio.fail_after(60):
            while server.statistics.open_connections:
                await trio.sleep(0.01)
        async with open_connection_pool("test", dialer(for_client())) as pool:
            assert await who(pool, address) == ANONYMOUS


async def test_versions_that_do_not_meet_end_the_handshake() -> None:
    async with (
        served(for_server(versions=["TLSv1.3"])) as (address, _),
        open_connection_pool("test", dialer(for_client(versions=["TLSv1.2"]))) as pool,
    ):
        with pytest.raises(AuthenticationError, match="protocol version"):
            await who(pool, address)


def test_what_is_no_certificate_is_said_with_the_name_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    other = AUTHORITY.issue("other")
    (tmp_path / "locked.pem").write_text("\n".join(_pem(AUTHORITY.issue("x", password="s3cret"))))
    cases = [
        (TlsIdentity(certificate_path=tmp_path / "missing.pem"), "missing.pem cannot be read: No such file"),
        (TlsIdentity(certificate_path=tmp_path / "empty.pem"), "does not hold a private key"),
        (TlsIdentity(certificate=SERVER.certificate, key=Secret(other.key)), "does not belong to the certificate"),
        (TlsIdentity(certificate_path=tmp_path / "locked.pem"), "is encrypted, and ssl.key.password is missing"),
        (TlsIdentity(certificate_path=tmp_path / "locked.pem", key_password=Secret("wrong")), "does not hold"),
    ]
    for made, said in cases:
        with pytest.raises(ConfigurationError, match=said) as refusal:
            server_context(TlsPlan(identity=made), ssl.CERT_NONE)
        assert refusal.value.key == "ssl.keystore.location"
    with pytest.raises(ConfigurationError, match="does not hold certificates in PEM"):
        client_context(TlsPlan(trust=TlsTrust(path=tmp_path / "empty.pem")), checks_name=True)
    right = TlsIdentity(certificate_path=tmp_path / "locked.pem", key_password=Secret("s3cret"))
    assert server_context(TlsPlan(identity=right), ssl.CERT_NONE)


def _pem(made: KeyPair) -> tuple[str, str]:
    return made.key, made.certificate


async def test_a_new_certificate_serves_new_connections_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.write_text("\n".join(_pem(SERVER)))
    identity = TlsIdentity(certificate_path=path)
    plan = TlsPlan(identity=identity)
    reloading = ReloadingContext(lambda: server_context(plan, ssl.CERT_NONE), [path, None], identity)
    first, end_s = reloading.context, reloading.end_s
    reloading.look()
    assert reloading.context is first
    path.write_text("broken")
    reloading.look()
    assert (reloading.context is first, reloading.failures) == (True, 1)
    path.unlink()
    reloading.look()
    assert (reloading.context is first, reloading.failures) == (True, 2)
    assert (reloading.end_s, certificate_end_s(identity)) == (end_s, 0)  # one that is gone has expired
    ends = (TODAY + timedelta(days=9)).replace(microsecond=0)
    renewed = AUTHORITY.issue("broker-1 renewed", ["localhost"], ends=ends)
    path.write_text("\n".join([*_pem(renewed), AUTHORITY.certificate]))
    reloading.look()
    assert (reloading.context is first, reloading.reloads) == (False, 1)
    assert reloading.end_s == ends.timestamp()  # of the first certificate of the chain that expires


async def test_a_closed_transport_wakes_who_waits() -> None:
    async with served(for_server()) as (address, _):
        transport = await Handshakes().connect(await connect(address), for_client(), "localhost")
        assert isinstance(transport, TlsTransport)

        async def wait() -> None:
            with pytest.raises(NetworkError):
                await transport.receive_into(memoryview(bytearray(10)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            transport.close()
            transport.close()
        with pytest.raises(NetworkError):
            await transport.send([b"x" * 100_000])


async def test_hostile_bytes_before_and_after_the_handshake_harm_no_other_client() -> None:
    rng = random.Random(1)
    async with (
        served(for_server()) as (address, server),
        open_connection_pool("test", dialer(for_client())) as pool,
    ):
        assert await who(pool, address) == ANONYMOUS
        for number in range(200):
            garbage = rng.randbytes(rng.randint(1, 400))
            if number % 2:
                garbage = b"\x16\x03\x01" + garbage  # the beginning of a handshake
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(garbage)
        for _ in range(50):
            transport = await Handshakes().connect(await connect(address), for_client(), "localhost")
            await transport.send([rng.randbytes(rng.randint(1, 400))])
            transport.close()
        assert await who(pool, address) == ANONYMOUS
        with trio.fail_after(60):
            while server.statistics.open_connections > 1:
                await trio.sleep(0.01)


def small_records(context: ssl.SSLContext, connected: socket.socket, count: int) -> bytes:
    """Shake hands over a blocking socket, and return records of one byte each."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            end.do_handshake()
            break
        except ssl.SSLWantReadError:
            connected.sendall(outgoing.read())
            incoming.write(connected.recv(65_536))
    for _ in range(count):
        end.write(b"x")
    return outgoing.read()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_peer_that_sends_records_of_one_byte_gets_short_turns_and_loses_its_connection(version: str) -> None:
    """OpenSSL would take 65,536 records before anybody else had a turn, and others without any data for ever."""
    received: list[int] = []
    over: list[str] = []
    (listener,) = await SOCKETS.listen(HostPort("127.0.0.1", 0))

    async def serve() -> None:
        accepted, _ = await listener.accept()
        assert isinstance(accepted, SocketTransport)
        transport, _ = await Handshakes().accept(accepted, for_server())
        buffer = memoryview(bytearray(65_536))
        try:
            while True:
                taken = transport.receive_now(buffer)
                received.append(taken or 0)
                if taken is None:
                    await transport.wait_readable()
        except NetworkError as error:
            over.append(str(error))
        transport.close()

    def attack() -> None:
        with socket.create_connection(("127.0.0.1", listener.port)) as connected, suppress(OSError):
            connected.sendall(small_records(for_client(versions=[version]), connected, 100_000))
            while connected.recv(65_536):
                pass

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(trio.to_thread.run_sync, attack)
    listener.close()
    assert max(received) <= (tls.POOR_BYTES + tls.MAX_CHUNK_BYTES) / 20
    assert max(received[10:]) <= tls.POOR_CHUNK_BYTES / 20
    assert over == [f"connection lost: {tls.MAX_WASTED_BYTES} bytes of TLS came with almost no data"]


async def test_an_address_with_most_of_the_waiting_handshakes_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls, "MAX_WAITING_HANDSHAKES", 10)
    async with served(for_server()) as (address, server), AsyncExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((address.host, address.port))) for _ in range(10)]
        with trio.fail_after(60):
            while server.statistics.accepted < len(silent):
                await trio.sleep(0.01)

        def from_elsewhere() -> str:
            with (
                socket.create_connection(
                    (address.host, address.port), 10, source_address=("127.0.0.2", 0)
                ) as connected,
                for_client().wrap_socket(connected, server_hostname="localhost") as encrypted,
            ):
                return encrypted.version() or ""

        assert await trio.to_thread.run_sync(from_elsewhere) == "TLSv1.3"
        silent[0].settimeout(60)
        assert await trio.to_thread.run_sync(silent[0].recv, 1) == b"", "the oldest has made room"
        assert server.statistics.refused_strangers == 1


async def test_a_large_frame_in_small_records_is_waited_for_in_few_steps() -> None:
    """A wait for each record of a producer that makes them of 1 KB takes more time than receiving it."""
    size, waits = 600_000, 0
    left, right = tcp_pair()
    async with trio.open_nursery() as nursery:
        ends: dict[str, TlsTransport] = {}

        async def accept() -> None:
            ends["server"], _ = await Handshakes().accept(SocketTransport(right), for_server())

        nursery.start_soon(accept)
        ends["client"] = await Handshakes().connect(SocketTransport(left), for_client(), "localhost")
    server, client = ends["server"], ends["client"]

    async def dribble() -> None:
        for _ in range(size // 1000):
            await client.send([b"x" * 1000])
            await trio.lowlevel.checkpoint()

    buffer = memoryview(bytearray(size))
    filled = 0
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dribble)
            while filled < size:
                filled += await server.receive_into(buffer[filled:], size - filled)
                waits += 1
    assert waits < 60
    client.close()
    server.close()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_resumed_session_does_not_outlive_its_certificate(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Self:
            return cls(2200, 1, 1, tzinfo=tz)

    async with served(for_server()) as (address, server):
        context = for_client(ALICE, versions=[version])

        def come_again() -> tuple[list[bool], bytes]:
            session, resumed, said = None, [], b""
            for visit in range(2):
                if visit:
                    monkeypatch.setattr(tls, "datetime", Later)
                with (
                    socket.create_connection((address.host, address.port), 10) as connected,
                    context.wrap_socket(connected, server_hostname="localhost", session=session) as encrypted,
                    suppress(OSError),
                ):
                    resumed.append(bool(encrypted.session_reused))
                    encrypted.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
                    said = encrypted.recv(1)
                    session = encrypted.session
            return resumed, said

        assert await trio.to_thread.run_sync(come_again) == ([False, True], b"")
        assert server.statistics.refused_strangers == 1
