"""The script by which the playbooks ask whether every ZooKeeper server serves."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "deploy/ansible/roles/pipeline/files/zookeeper_serves.py"


@contextmanager
def server(answer: bytes, address: str = "127.0.0.1") -> Iterator[str]:
    """Answer one connection; the value is the address as in the inventory."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        yield f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        thread.join()


def ask(*servers: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *servers], capture_output=True, text=True, check=False)


def test_all_servers_that_serve_are_named_with_their_mode() -> None:
    with server(b"Zxid: 0x1\nMode: leader\n") as leader, server(b"Mode: follower\n", "::1") as follower:
        done = ask(leader, follower)
    assert (done.returncode, done.stdout) == (0, f"{leader}: leader\n{follower}: follower\n")


def test_one_server_that_does_not_serve_is_enough_to_fail() -> None:
    lost = "This ZooKeeper instance is not currently serving requests"
    with server(b"Mode: leader\n") as leader, server(lost.encode()) as alone, server(b"") as silent:
        done = ask(leader, alone, silent, "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{alone}: answers: {lost}\n{silent}: answers: nothing\n127.0.0.1:1: ")
