"""Connections of kazoo over TLS: decrypted bytes count as readable, and faults are told in sentences."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.secured.certificates import Authority, KeyPair
from pipeline.coordination.kazoo_handler import TlsHandler
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity

AUTHORITY = Authority()
MESSAGE = b"answer-1answer-2"
LONG_S = 20.0


@contextmanager
def serving(directory: Path, issued: KeyPair) -> Iterator[int]:
    """The port of a server that shakes hands with one client and sends it one record."""
    (directory / "server.pem").write_text(issued.key + issued.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with plain:
                try:
                    with context.wrap_socket(plain, server_side=True) as encrypted:
                        encrypted.sendall(MESSAGE)
                        is_over.wait(LONG_S)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        is_over.set()
        thread.join(LONG_S)


def handler(directory: Path, faults: list[str], **settings: Any) -> TlsHandler:
    given: Mapping[str, Any] = {
        "zookeeper.ssl.client.enable": True,
        "zookeeper.ssl.truststore.location": str(directory / "ca.pem"),
        **settings,
    }
    return TlsHandler(ZooKeeperSecurity.from_settings(given), faults.append)


def test_decrypted_bytes_make_a_socket_readable_although_no_more_will_come(tmp_path: Path) -> None:
    faults: list[str] = []
    with serving(tmp_path, AUTHORITY.issue("zookeeper", ["127.0.0.1"])) as port:
        opened = handler(tmp_path, faults)
        idle, other_end = socket.socketpair()
        with opened.create_connection(("127.0.0.1", port), hostname="127.0.0.1", timeout=LONG_S) as encrypted:
            assert opened.select([encrypted, idle], [], [], LONG_S)[0] == [encrypted]
            assert encrypted.recv(8) == MESSAGE[:8]
            before = time.monotonic()
            assert opened.select([encrypted, idle], [], [], LONG_S)[0] == [encrypted]
            assert time.monotonic() - before < LONG_S / 2
            assert encrypted.recv(8) == MESSAGE[8:]
            assert opened.select([encrypted, idle], [], [], 0.01)[0] == []
            other_end.send(b"x")
            assert opened.select([encrypted, idle], [], [], LONG_S)[0] == [idle]
        idle.close()
        other_end.close()
    assert faults == []


@pytest.mark.parametrize(
    ("issued", "said"),
    [
        (AUTHORITY.issue("zookeeper", ["zookeeper.example"]), "is for another name"),
        (Authority("another").issue("zookeeper", ["127.0.0.1"]), "nobody who is trusted has signed"),
        (
            AUTHORITY.issue(
                "zookeeper",
                ["127.0.0.1"],
                begins=datetime.now(UTC) - timedelta(days=3),
                ends=datetime.now(UTC) - timedelta(days=2),
            ),
            "has expired",
        ),
    ],
)
def test_a_certificate_that_is_not_taken_is_explained(tmp_path: Path, issued: KeyPair, said: str) -> None:
    faults: list[str] = []
    with serving(tmp_path, issued) as port, pytest.raises(OSError, match=r".+"):
        handler(tmp_path, faults).create_connection(("127.0.0.1", port), hostname="127.0.0.1", timeout=LONG_S)
    (fault,) = faults
    assert fault.startswith(f"127.0.0.1:{port}: ")
    assert said in fault


def test_files_that_vanish_while_a_client_runs_are_named_at_its_next_connection(tmp_path: Path) -> None:
    faults: list[str] = []
    with pytest.raises(OSError, match=r"ca\.pem"):
        handler(tmp_path, faults).create_connection(("127.0.0.1", 1), hostname="127.0.0.1", timeout=LONG_S)
    assert "zookeeper.ssl.truststore.location" in faults[0]
