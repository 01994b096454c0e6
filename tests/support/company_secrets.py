"""Secrets of the services of a company: files that belong into /etc/pipeline/secrets of each host."""

from collections.abc import Mapping
from random import Random

from pipeline.cli.secured.certificates import Authority
from pipeline.deployment.protection import SERVICE_USERS
from pipeline.net.http.users import SALT_BYTES, Role, password_entry


def secrets_of_all_hosts(authority: Authority, suffix: str = "password") -> Mapping[str, str]:
    """Return the text of each file that is the same on all hosts. A user's password is its name and the suffix."""
    rng = Random(5)
    users = {user: f"{user}-{suffix}" for user in SERVICE_USERS}
    entries = [
        password_entry(user, Role.ADMIN if user == "admin" else Role.READ, word, rng.randbytes(SALT_BYTES))
        for user, word in users.items()
    ]
    login = "".join(f'\n  user_{user}="{users[user]}"' for user in ("broker", "mirror"))
    return {
        "ca.pem": authority.certificate,
        "passwords.properties": "".join(f"{user}={word}\n" for user, word in users.items()),
        "http-users": "\n".join(entries) + "\n",
        "zookeeper.jaas": f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required{login};\n}};\n",
    }


def secrets_of_host(authority: Authority, name: str, address: str) -> Mapping[str, str]:
    """Return the text of each file of one host alone: a new key, and its certificate."""
    pair = authority.issue(name, [address])
    return {"server.pem": pair.key + pair.certificate}
