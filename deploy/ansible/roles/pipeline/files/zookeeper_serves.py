"""Print the mode of each ZooKeeper server (leader, follower, standalone); exit code 1 if one of them serves nobody.

Usage: zookeeper_serves.py [--tls] HOST:PORT ...
"""

import re
import socket
import ssl
import sys

TIMEOUT_S = 5.0


def main() -> None:
    """Ask each server by its command `srvr`."""
    is_tls = "--tls" in sys.argv
    silent = []
    for server in (argument for argument in sys.argv[1:] if argument != "--tls"):
        try:
            sys.stdout.write(f"{server}: {_mode_of(server, is_tls)}\n")
        except (OSError, ValueError) as error:
            silent.append(f"{server}: {error}")
    if silent:
        sys.exit("\n".join(silent))


def _mode_of(server: str, is_tls: bool) -> str:
    host, _, port = server.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain:
        connection = _encrypted(plain) if is_tls else plain
        connection.sendall(b"srvr")
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
    mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
    if mode is None:
        raise ValueError(f"answers: {answer.strip() or 'nothing'}")
    return mode[1]


def _encrypted(plain: socket.socket) -> socket.socket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the answer is no secret, and sends none
    return context.wrap_socket(plain)


if __name__ == "__main__":
    main()
