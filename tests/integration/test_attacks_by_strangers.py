"""A secured broker, attacked by strangers: bytes before, in the middle of, and behind an authentication."""

import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from pipeline.coordination.scram_znodes import ScramHash, salted_password
from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net import server as server_module
from pipeline.net.transport import SocketTransport, connect
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.raw_requests import request_bytes
from tests.support.secured_broker import AUTHORITY, DEADLINE_S, SecuredBroker, secured_broker

OPEN = {17, 18, 36}
"""The api keys that a stranger may use: SaslHandshake, ApiVersions, SaslAuthenticate."""


@asynccontextmanager
async def connected(address: HostPort) -> AsyncIterator[SocketTransport]:
    transport = await connect(address)
    try:
        yield transport
    finally:
        transport.close()


async def said(broker: SecuredBroker, data: bytes, listener: str = "SASL_PLAINTEXT") -> bytes:
    """What the broker answers to these bytes, and nothing more, before it or the client ends the connection."""
    async with connected(broker.addresses[listener]) as transport:
        answer, buffer = b"", memoryview(bytearray(100_000))
        try:
            await transport.send([data])
            transport.end_sending()
            with trio.fail_after(DEADLINE_S):
                while received := await transport.receive_into(buffer):
                    answer += buffer[:received]
        except NetworkError:
            pass
        return answer


def frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def plain(user: str, password: str) -> bytes:
    return request_bytes(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode()), 2)


HANDSHAKE = request_bytes(SaslHandshakeRequest(mechanism="PLAIN"), 1)
OLD_HANDSHAKE = request_bytes(SaslHandshakeRequest(mechanism="PLAIN"), 0)
METADATA = request_bytes(MetadataRequest(topics=None), 9)
GOOD, BAD, OTHER = plain("alice", "pencil"), plain("alice", "wrong"), plain("admin", "boss")
VERSIONS = request_bytes(ApiVersionsRequest(), 0)


async def test_no_api_key_but_those_of_the_authentication_is_answered(tmp_path: Path) -> None:
    keys = [*range(-3, 120), 10_000, 2**15 - 1, -(2**15)]
    async with secured_broker(tmp_path) as broker:
        answered = set()
        for key in keys:
            for version in (0, 9):
                data = framed(struct.pack(">hhih", key, version, 1, -1) + bytes(40))
                if await said(broker, data):
                    answered.add(key)
        assert answered == OPEN


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (HANDSHAKE + METADATA, 1),
        (HANDSHAKE + BAD + METADATA, 2),
        (HANDSHAKE + GOOD + METADATA, 3),
        (GOOD + METADATA, 1),
        (HANDSHAKE + HANDSHAKE + GOOD + METADATA, 2),
        (HANDSHAKE + VERSIONS + GOOD + METADATA, 1),
        (HANDSHAKE + GOOD + GOOD + METADATA, 3),
        (HANDSHAKE + GOOD + HANDSHAKE + OTHER + METADATA, 4),
        (HANDSHAKE + GOOD + HANDSHAKE + BAD + METADATA, 4),
        (HANDSHAKE + GOOD + HANDSHAKE + GOOD + METADATA, 5),
        (OLD_HANDSHAKE + framed(b"\0alice\0pencil") + METADATA, 3),
        (OLD_HANDSHAKE + framed(b"\0alice\0wrong") + METADATA, 1),
        (OLD_HANDSHAKE + framed(b"") + METADATA, 1),
        (OLD_HANDSHAKE + struct.pack(">i", 2**31 - 1) + METADATA, 1),
        (OLD_HANDSHAKE + METADATA, 1),
        (request_bytes(SaslHandshakeRequest(mechanism="plain"), 1) + GOOD + METADATA, 1),
        (request_bytes(SaslHandshakeRequest(mechanism="PLAIN\0"), 1) + GOOD + METADATA, 1),
        (request_bytes(SaslHandshakeRequest(mechanism="ANONYMOUS"), 1) + GOOD + METADATA, 1),
        (20 * VERSIONS + METADATA, 20),
        (5000 * VERSIONS + HANDSHAKE + GOOD + METADATA, 20),
        (struct.pack(">i", 524_289) + bytes(5000), 0),
    ],
)
async def test_pipelined_requests_are_answered_up_to_the_one_that_is_refused(
    tmp_path: Path, data: bytes, answers: int
) -> None:
    async with secured_broker(tmp_path) as broker:
        assert len(frames(await said(broker, data))) == answers


@pytest.mark.parametrize(
    "token",
    [
        b"\0\0",
        b"\0admin\0",
        b"\0admin\0admin",
        b"\0kafka\0kafka",
        b"\0broker\0\0b2b",
        b"admin\0alice\0pencil",
        b"\0alice\0pencil\0",
        b"\0ALICE\0pencil",
        b"\0alice \0pencil",
        b"\0User:alice\0pencil",
        b"\0ANONYMOUS\0",
        b"\0*\0x",
        b"\xff\0alice\0pencil",
        "\0\uff41lice\0pencil".encode(),
        b"\0nobody\0\0",
        bytes(1000),
    ],
)
async def test_default_passwords_and_tricks_with_zero_bytes_let_nobody_in(tmp_path: Path, token: bytes) -> None:
    async with secured_broker(tmp_path) as broker:
        asked = HANDSHAKE + request_bytes(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert len(frames(await said(broker, asked + METADATA))) == 2


async def test_a_stranger_does_not_learn_who_exists_from_scram(tmp_path: Path) -> None:
    zookeeper = MemoryZooKeeper()
    shown: dict[str, list[tuple[int, int, str]]] = {"bob": [], "nobody": []}
    for life in range(2):
        directory = tmp_path / str(life)
        directory.mkdir()
        async with secured_broker(directory, zookeeper, log_dirs=str(tmp_path / "logs")) as broker:
            async with broker.user("admin") as admin:
                if not life:
                    answer = await admin(AlterUserScramCredentialsRequest(upsertions=[credential("bob", 8192)]))
                    assert answer.results[0].error_code == 0
            for user, found in shown.items():
                first = f"n,,n={user},r=nonce".encode()
                handshake = request_bytes(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
                sent = handshake + request_bytes(SaslAuthenticateRequest(auth_bytes=first), 2)
                text = frames(await said(broker, sent))[1].partition(b"r=nonce")[2].partition(b"\0")[0].decode()
                parts = dict(part.partition("=")[::2] for part in text.split(",")[1:])
                found.append((int(parts["i"]), len(parts["s"]), parts["s"]))
    for found in shown.values():
        assert found[0] == found[1], "the salt of a user stays when a broker is started anew"
    assert shown["bob"][0][:2] == shown["nobody"][0][:2], "known and unknown users look alike"
    assert shown["bob"][0][2] != shown["nobody"][0][2]


def credential(user: str, iterations: int) -> ScramCredentialUpsertion:
    salt = b"a salt of twenty-six bytes"
    return ScramCredentialUpsertion(
        name=user,
        mechanism=1,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(ScramHash.SHA_256, "pencil", salt, iterations),
    )


def held_open(address: HostPort, data: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine, and send some bytes."""
    connected = socket.create_connection((address.host, address.port), DEADLINE_S, source_address=(host, 0))
    connected.sendall(data)
    return connected


def answers_of(connected: socket.socket, count: int) -> int:
    """Receive so many answers; return how many came before the end of the connection."""
    received = b""
    with suppress(OSError):
        while len(frames(received)) < count and (more := connected.recv(100_000)):
            received += more
    return len(frames(received))


@pytest.mark.parametrize("bound", ["connections", "strangers"])
async def test_strangers_of_one_address_leave_places_for_clients_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "strangers":
        monkeypatch.setattr(server_module, "MAX_STRANGERS", 10)
    async with secured_broker(tmp_path, max_connections=10 if bound == "connections" else 1000) as broker:
        address = broker.addresses["SASL_PLAINTEXT"]

        def attack() -> tuple[int, int, bytes]:
            with ExitStack() as stack:
                silent = [stack.enter_context(held_open(address)) for _ in range(10)]
                elsewhere = stack.enter_context(held_open(address, HANDSHAKE + GOOD + METADATA, "127.0.0.2"))
                got = answers_of(elsewhere, 3)
                left = silent[0].recv(1)
                silent.append(stack.enter_context(held_open(address)))
                return got, answers_of(stack.enter_context(held_open(address, HANDSHAKE)), 1), left

        answered, beside, left = await trio.to_thread.run_sync(attack)
        assert (answered, left) == (3, b""), "the oldest stranger makes room"
        assert beside == 0, "and not for one of its own address"


async def test_clients_do_not_shut_brokers_out_of_each_other(tmp_path: Path) -> None:
    async with secured_broker(tmp_path, max_connections=5) as broker:
        clients, brokers = broker.addresses["SASL_PLAINTEXT"], broker.addresses["SASL_SSL"]

        def attack() -> tuple[list[int], int, bytes]:
            with ExitStack() as stack:
                users = [stack.enter_context(held_open(clients, HANDSHAKE + GOOD + METADATA)) for _ in range(5)]
                served = [answers_of(user, 3) for user in users]
                further = answers_of(stack.enter_context(held_open(clients, HANDSHAKE)), 1)
                context = ssl.create_default_context(cadata=AUTHORITY.certificate)
                plain = stack.enter_context(held_open(brokers))
                encrypted = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
                encrypted.sendall(VERSIONS)
                assert answers_of(encrypted, 1) == 1
                return served, further, users[0].recv(1)

        served, further, left = await trio.to_thread.run_sync(attack)
        assert served == [3] * 5
        assert further == 0
        assert left == b"", "the client that was silent for longest makes room for a broker"
