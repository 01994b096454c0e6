"""Kafka's `sasl.jaas.config`: the passwords that a listener knows, and those that a broker logs in with. Pure.

`org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="x" user_alice="y";`
Only the options count here; the name of the module says the mechanism, which the setting's name says already.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.credentials import Secret

_OPTION = re.compile(r'\s+(?P<name>[A-Za-z_][\w.@-]*)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s";]+))')
_HEAD = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)")
_END = re.compile(r"\s*;\s*")
_USER = "user_"
_TLS = "ssl."


@dataclass(frozen=True, slots=True)
class Jaas:
    """The options: the broker's own name and password, the passwords of users, and how a server of tokens is asked."""

    username: str | None = None
    password: Secret | None = None
    users: Mapping[str, Secret] = field(default_factory=dict)
    tls: Mapping[str, str] = field(default_factory=dict)
    client_id: str | None = None
    """Name of the broker at a server that gives tokens to clients."""
    client_secret: Secret | None = None
    scope: str | None = None


def parse_jaas(text: str) -> Jaas:
    """Parse an entry. Raises ValueError, which never shows an option's value."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError('is not MODULE required OPTION="VALUE" ...;')
    options: dict[str, str] = {}
    position = head.end()
    while (found := _OPTION.match(text, position)) is not None:
        value = found["plain"] if found["quoted"] is None else re.sub(r"\\(.)", r"\1", found["quoted"])
        options[found["name"]] = value
        position = found.end()
    if _END.fullmatch(text, position) is None:
        raise ValueError(f'cannot be read behind {len(options)} options: write OPTION="VALUE", and ; at the end')
    users = {name.removeprefix(_USER): Secret(value) for name, value in options.items() if name.startswith(_USER)}
    secrets = {name: Secret(options[name]) for name in ("password", "clientSecret") if name in options}
    tls = {name: value for name, value in options.items() if name.startswith(_TLS)}
    return Jaas(
        options.get("username"),
        secrets.get("password"),
        users,
        tls,
        options.get("clientId"),
        secrets.get("clientSecret"),
        options.get("scope"),
    )
