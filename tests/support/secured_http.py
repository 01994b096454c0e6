"""HTTP servers with TLS and users, for tests: files of certificates and users, and clients."""

import base64
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.cli.secured.certificates import Authority
from pipeline.net.http.users import Role, password_entry, token_entry

PASSWORDS = {"reader": "read it", "writer": "write:it", "admin": "größer"}
"""Passwords of users."""
ROLES = {"reader": Role.READ, "writer": Role.WRITE, "admin": Role.ADMIN}
TOKEN = "3f" * 32
"""Token of the user `ci`, who may write."""
SALT = b"s" * 16


@cache
def users_text() -> str:
    """Return a file of users. It takes some 0.2 s."""
    entries = [password_entry(name, role, PASSWORDS[name], SALT) for name, role in ROLES.items()]
    return "# users\n" + "\n".join([*entries, token_entry("ci", Role.WRITE, TOKEN)]) + "\n"


def basic(name: str, password: str | None = None) -> dict[str, str]:
    """Return the header of a user."""
    shown = f"{name}:{PASSWORDS[name] if password is None else password}"
    return {"Authorization": f"Basic {base64.b64encode(shown.encode()).decode()}"}


@dataclass(frozen=True)
class HttpFiles:
    """Files of a secured server in a folder."""

    keystore: Path
    users: Path
    ca: Path
    authority: Authority

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the server."""
        return {"http.ssl.keystore.location": str(self.keystore), "http.users.file": str(self.users)}

    @property
    def context(self) -> ssl.SSLContext:
        """Context of a client that trusts the server."""
        return ssl.create_default_context(cafile=str(self.ca))

    def renew(self, name: str) -> None:
        """Give the server another certificate, of this common name."""
        pair = self.authority.issue(name, ["127.0.0.1", "localhost"])
        self.keystore.write_text(pair.key + pair.certificate)


def http_files(folder: Path) -> HttpFiles:
    """Write a certificate, its authority and users."""
    authority = Authority()
    files = HttpFiles(folder / "server.pem", folder / "users", folder / "ca.pem", authority)
    files.users.write_text(users_text())
    files.ca.write_text(authority.certificate)
    files.renew("first")
    return files
