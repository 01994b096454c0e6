"""An authority that signs tokens (JWT), and its HTTP server: the keys as a JWKS document, and tokens for clients."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ALGORITHMS = ("RS256", "PS512", "ES256", "EdDSA")
CLIENT, CLIENT_SECRET = "loader", "s3cret of the loader"


@dataclass
class TokenAuthority:
    """The keys by `kid`, and what the server was asked."""

    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    forms: list[Mapping[str, list[str]]] = field(default_factory=list)
    url: str = ""
    document: bytes | None = None
    """What is sent in place of the keys."""
    keystore: Path | None = None
    """Key and certificate of a server with TLS."""

    def add(self, key_id: str, algorithm: str = "ES256") -> None:
        """Make a key."""
        self.keys[key_id] = (algorithm, new_key(algorithm))

    def token(self, key_id: str, **claims: Any) -> str:
        """Sign a token."""
        algorithm, key = self.keys[key_id]
        return jwt.encode(claims, key, algorithm, headers={"kid": key_id})

    def jwks(self) -> dict[str, Any]:
        """The public keys as a document."""
        return {"keys": [public_jwk(key_id, algorithm, key) for key_id, (algorithm, key) in self.keys.items()]}

    @contextmanager
    def serving(self, *, lifetime_s: float = 600, **of_clients: Any) -> Iterator[str]:
        """Serve /keys and /token, whose tokens claim this and live so long; gives the URL."""
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                authority.asked.append(self.path)
                if self.path == "/moved":
                    self._answer(302, b"", Location="/keys")
                elif self.path == "/keys":
                    self._answer(200, authority.document or json.dumps(authority.jwks()).encode())
                else:
                    self._answer(404, b"")

            def do_POST(self) -> None:
                authority.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                authority.forms.append(form)
                wanted = "Basic " + base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
                if self.headers["Authorization"] != wanted:
                    self._answer(401, b'{"error": "invalid_client"}')
                    return
                token = authority.token(next(iter(authority.keys)), exp=time.time() + lifetime_s, **of_clients)
                self._answer(200, json.dumps({"access_token": token, "expires_in": lifetime_s}).encode())

            def _answer(self, status: int, content: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.keystore is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.keystore)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            self.url = f"{'http' if self.keystore is None else 'https'}://127.0.0.1:{server.server_port}"
            yield self.url
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def new_key(algorithm: str) -> Any:
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1, "ES384": ec.SECP384R1}[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def public_jwk(key_id: str, algorithm: str, key: Any) -> dict[str, Any]:
    kind = ECAlgorithm if algorithm.startswith("ES") else OKPAlgorithm if algorithm == "EdDSA" else RSAAlgorithm
    described: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    return {**described, "kid": key_id, "use": "sig", "alg": algorithm}
