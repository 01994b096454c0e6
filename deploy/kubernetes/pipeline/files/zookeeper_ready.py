"""Succeeds if the ZooKeeper server of this pod belongs to a quorum: zookeeper_ready.py PORT [tls]."""

import socket
import ssl
import sys

TIMEOUT_S = 5


def main() -> None:
    """Ask for `srvr`, whose answer has a mode only in a quorum, or alone."""
    connection: socket.socket = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=TIMEOUT_S)
    if "tls" in sys.argv[2:]:
        context = ssl.create_default_context()
        context.check_hostname = False  # of this pod itself, by its loopback address
        context.verify_mode = ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    with connection:
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    if b"\nMode: " not in answer:
        sys.exit(answer.decode(errors="replace") or "no answer")


main()
