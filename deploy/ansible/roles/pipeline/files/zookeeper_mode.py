"""Print the mode of a ZooKeeper server (leader, follower, standalone); exit code 1 if it serves nobody yet.

Usage: zookeeper_mode.py HOST PORT [tls]
"""

import re
import socket
import ssl
import sys

TIMEOUT_S = 5.0


def main() -> None:
    """Ask the server by its command `srvr`."""
    host, port, *tls = sys.argv[1:]
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as plain:
            connection = _encrypted(plain) if tls else plain
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
    except OSError as error:
        sys.exit(f"{host}:{port}: {error}")
    mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
    if mode is None:
        sys.exit(f"{host}:{port} answers: {answer.strip() or 'nothing'}")
    sys.stdout.write(f"{mode[1]}\n")


def _encrypted(plain: socket.socket) -> socket.socket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the answer is no secret, and sends none
    return context.wrap_socket(plain)


if __name__ == "__main__":
    main()
