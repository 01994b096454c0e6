"""The process of many clients: `python -m bench.security.connections PORT COUNT CA` opens them all, and keeps them.

Prints the time in s until all were connected. Each asks for ApiVersions, so that the broker serves it.
"""

import socket
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.messages.api_versions import ApiVersionsRequest

THREADS = 50
"""Clients that connect at the same moment."""
DEADLINE_S = 60


def main() -> None:
    port, count, ca = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    context = ssl.create_default_context(cafile=ca)
    pieces = ClientConnection("storm").encode_request(ApiVersionsRequest(), 0)[1]
    request = b"".join(piece for piece in pieces if isinstance(piece, bytes | bytearray | memoryview))

    def connect(_: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        encrypted = context.wrap_socket(plain, server_hostname="127.0.0.1")
        encrypted.sendall(request)
        if not encrypted.recv(4):
            raise RuntimeError("the broker closed the connection")
        return encrypted

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        opened = list(threads.map(connect, range(count)))
    print(time.perf_counter() - began)
    for connection in opened:
        connection.close()


if __name__ == "__main__":
    main()
