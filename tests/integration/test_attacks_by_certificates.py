"""A secured broker and its clients, attacked with certificates: of another authority, or stolen from a client."""

import socket
import ssl
from pathlib import Path

import pytest
import trio

from pipeline.cli.secured.certificates import Authority, KeyPair
from pipeline.errors import AuthenticationError
from pipeline.model import HostPort
from pipeline.net.connection_pool import open_connection_pool
from pipeline.net.security.client_security import ClientSecurity
from pipeline.protocol.messages.metadata import MetadataRequest
from tests.support.raw_requests import request_bytes
from tests.support.secured_broker import AUTHORITY, DEADLINE_S, secured_broker

STOLEN = AUTHORITY.issue("alice")
"""The certificate of a client, which names no host."""
METADATA = request_bytes(MetadataRequest(topics=None), 9)


def context_of(side: int, directory: Path, made: KeyPair | None) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if made is not None:
        path = directory / "attacker.pem"
        path.write_text(made.key + made.certificate)
        context.load_cert_chain(path)
    return context


@pytest.mark.parametrize(
    "made",
    [None, Authority("authority of tests").issue("admin"), Authority("admin").issue("broker-1", ["127.0.0.1"])],
    ids=["no certificate", "an authority of the same name", "another authority"],
)
async def test_only_certificates_of_the_own_authority_get_in(tmp_path: Path, made: KeyPair | None) -> None:
    async with secured_broker(tmp_path) as broker:
        address = broker.addresses["SSL"]

        def attack() -> bytes:
            context = context_of(ssl.PROTOCOL_TLS_CLIENT, tmp_path, made)
            try:
                with (
                    socket.create_connection((address.host, address.port), DEADLINE_S) as connected,
                    context.wrap_socket(connected) as encrypted,
                ):
                    encrypted.sendall(METADATA)
                    return encrypted.recv(100)
            except OSError:
                return b""

        assert await trio.to_thread.run_sync(attack) == b""


@pytest.mark.parametrize(
    "made",
    [STOLEN, AUTHORITY.issue("broker-1", ["broker-1.example"]), Authority("another").issue("b", ["127.0.0.1"])],
    ids=["stolen from a client", "of another host", "of another authority"],
)
async def test_a_man_in_the_middle_is_not_told_the_password(tmp_path: Path, made: KeyPair) -> None:
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate)
    heard: list[bytes] = []

    def pretend(listener: socket.socket) -> None:
        connected, _ = listener.accept()
        connected.settimeout(DEADLINE_S)
        try:
            with context_of(ssl.PROTOCOL_TLS_SERVER, tmp_path, made).wrap_socket(connected, server_side=True) as end:
                heard.append(end.recv(1000))
        except OSError:
            pass

    security = ClientSecurity.from_settings(
        {
            "security.protocol": "SASL_SSL",
            "sasl.username": "alice",
            "sasl.password": "pencil",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
        }
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery, open_connection_pool("test", dialer=security.dialer()) as pool:
            nursery.start_soon(trio.to_thread.run_sync, pretend, listener)
            address = HostPort("127.0.0.1", listener.getsockname()[1])
            with pytest.raises(AuthenticationError, match=r"another name|trusted"):
                await pool.request(address, MetadataRequest(), timeout_s=DEADLINE_S)
    assert b"".join(heard) == b""
