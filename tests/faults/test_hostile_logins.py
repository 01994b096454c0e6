"""Byte sequences that nobody should send, before and after authentication, plain and by TLS.

Before authentication nothing is answered but ApiVersions, SaslHandshake and SaslAuthenticate, and nobody comes in.
After it, a user without rights changes nothing. Others are served all the while, and all connections end.
"""

import contextlib
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pipeline.broker.requests.dispatch import SERVED
from pipeline.net.authentication import OPEN_TO_STRANGERS
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest
from pipeline.protocol.schema import Message
from tests.support.blocking_client import BlockingClient
from tests.support.clients import wait_for
from tests.support.hostile import HostileRequests
from tests.support.secured_service import MECHANISMS, SecuredService, secured_service
from tests.support.sizes import size
from tests.support.wire import joined

SEED = 20261126
SEQUENCES = size(20_000, 100_000)
THREADS = 8
SILENCE_S = 2.0
STRANGER, STRANGERS_PASSWORD = "mallory", "crowbar"
NAMES = ("", "secret", "alice", "admin", "group", "__consumer_offsets", "kafka-cluster", "User:alice", "*")
TOKENS = (
    b"\0alice\0wrong",
    b"\0alice\0",
    b"alice\0mallory\0crowbar",
    b"n,,n=alice,r=x",
    b"n,,n=alice,r=",
    b"p=tls-unique,,n=alice,r=x",
    b"c=biws,r=x,p=AAAA",
    b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.\x01\x01",
    b"\x01",
    b"\x00" * 1000,
    b"\xff" * 70_000,
)


def framed(message: Message, version: int) -> bytes:
    return joined(ClientConnection("bad").encode_request(message, version)[1])


def handshake(mechanism: str, version: int = 1) -> bytes:
    return framed(SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(token: bytes, version: int = 1) -> bytes:
    return framed(SaslAuthenticateRequest(auth_bytes=token), version)


@dataclass(slots=True)
class Sequences:
    """Sequences of one seed: frames of any api key, exchanges of SASL in wrong orders, and noise."""

    rng: Random
    frames: Iterator[bytes]
    outcomes: Counter[str] = field(default_factory=Counter)

    def next(self) -> bytes:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                return rng.randbytes(rng.choice((1, 4, 7, 50, 2000)))
            case 1:
                return b"".join(next(self.frames) for _ in range(rng.randint(1, 3)))
            case _:
                return b"".join(self._exchange())

    def _exchange(self) -> Iterator[bytes]:
        rng = self.rng
        for _ in range(rng.randint(1, 4)):
            token = rng.choice(TOKENS) if rng.random() < 0.8 else rng.randbytes(rng.randint(0, 100))
            match rng.randrange(6):
                case 0 | 1:
                    yield handshake(rng.choice((*MECHANISMS, "GSSAPI", "", "x" * 1000)), rng.choice((0, 1)))
                case 2 | 3:
                    yield authenticate(token, rng.choice((0, 1, 2)))
                case 4:
                    yield struct.pack(">i", len(token)) + token  # bare, as after SaslHandshake of version 0
                case _:
                    yield next(self.frames)


def opened(broker: SecuredService, listener: str) -> socket.socket:
    host, port = broker.addresses[listener].split(":")
    plain = socket.create_connection((host, int(port)), 30)
    if "SSL" not in listener:
        return plain
    return ssl.create_default_context(cafile=str(broker.ca)).wrap_socket(plain, server_hostname="127.0.0.1")


def received(connection: socket.socket) -> bytes:
    """All until the broker ends the connection, or is silent."""
    found = bytearray()
    connection.settimeout(SILENCE_S)
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            found += data
    return bytes(found)


def end_of_sending(connection: socket.socket) -> None:
    """Tell the broker that no more comes, below TLS as well."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_WR)


def attack_as_stranger(broker: SecuredService, listener: str, sequence: bytes) -> str:
    """Send a sequence, and behind it a request that needs a user: it must not be answered."""
    last = 0x7ABCDEF0
    asked = bytearray(framed(MetadataRequest(topics=None), 1))
    asked[8:12] = struct.pack(">i", last)
    connection = opened(broker, listener)
    with connection:
        with contextlib.suppress(OSError):
            connection.sendall(sequence + asked)
        end_of_sending(connection)
        answer = received(connection)
    assert struct.pack(">i", last) not in answer, sequence
    return "answered" if answer else "closed"


def attack_as_user(broker: SecuredService, listener: str, sequence: bytes) -> str:
    """Log in as a user without rights, and send a sequence."""
    connection = opened(broker, listener)
    with BlockingClient(("", 0), connection) as client:
        answer: Any = client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == 0
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=f"\0{STRANGER}\0{STRANGERS_PASSWORD}".encode()), 1)
        assert answer.error_code == 0
        with contextlib.suppress(OSError):
            connection.sendall(sequence)
        end_of_sending(connection)
        return "answered" if received(connection) else "closed"


def everything(admin: AdminClient) -> tuple[object, ...]:
    """What a user without rights must not change: topics with their ends, ACLs and users."""
    anything: Any = None
    any_rule = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    rules = sorted(str(rule) for rule in admin.describe_acls(any_rule).result(30))
    described: Any = admin.describe_user_scram_credentials()
    users = sorted(described.result(30))
    topics = admin.list_topics(timeout=30).topics
    return sorted((name, len(topic.partitions)) for name, topic in topics.items()), rules, users


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SecuredService]:
    users = f'x.PlainLoginModule required user_alice="pencil" user_{STRANGER}="{STRANGERS_PASSWORD}";'
    delay = {"connection_failed_authentication_delay_ms": "0", "auto_create_topics_enable": "true"}
    with secured_service(tmp_path, plain_sasl_jaas_config=users, **delay) as secured:
        yield secured


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_hostile_sequences_neither_get_in_nor_change_anything(broker: SecuredService) -> None:
    admin = AdminClient({"bootstrap.servers": broker.addresses["PLAINTEXT"], "log_level": 0})
    before = everything(admin)
    outcomes: Counter[str] = Counter()
    for number, (attack, listener, share) in enumerate(
        (
            (attack_as_stranger, "SASL_PLAINTEXT", 0.4),
            (attack_as_stranger, "SASL_SSL", 0.2),
            (attack_as_user, "SASL_PLAINTEXT", 0.2),
            (attack_as_user, "SASL_SSL", 0.2),
        )
    ):
        rng = Random(f"{SEED} {number}")
        apis = OPEN_TO_STRANGERS if attack is attack_as_stranger and number % 2 else SERVED
        frames = HostileRequests(apis, NAMES, SEED + number).frames(10 * SEQUENCES)
        sequences = Sequences(rng, frames)
        with ThreadPoolExecutor(THREADS) as threads:
            made = (sequences.next() for _ in range(int(SEQUENCES * share)))
            outcomes.update(threads.map(partial(attack, broker, listener), made))
    print(outcomes)
    assert outcomes["closed"] and outcomes["answered"]
    assert everything(admin) == before
    wait_for("the end of all connections", lambda: open_connections(broker) < THREADS)


def open_connections(broker: SecuredService) -> int:
    """Sockets of this process that are connected to the listeners with SASL, at the broker's end."""
    ports = {int(broker.addresses[name].split(":")[1]) for name in ("SASL_PLAINTEXT", "SASL_SSL")}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(int(line.split()[1].split(":")[1], 16) in ports and line.split()[3] == "01" for line in lines)
