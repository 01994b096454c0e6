"""The znodes of client quotas, in Kafka's layout. Pure.

`/config/users/<user>`, `/config/users/<user>/clients/<client-id>` and `/config/clients/<client-id>`, each name
`<default>` for everybody without one of their own.

Names are written as Kafka's Sanitizer does: percent-encoded, so that any name can be part of a path. A user's znode may
hold other things than quotas (SCRAM credentials); whoever changes quotas keeps those.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

CONFIG_USERS = "/config/users"
CONFIG_CLIENTS = "/config/clients"
DOTS = frozenset({".", ".."})


class Default(Enum):
    """The entity that stands for everybody who has none of their own."""

    DEFAULT = "<default>"


DEFAULT = Default.DEFAULT

EntityName = str | Default | None
"""A name, the default, or (None) not part of the entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """The owner of a quota: a user, a client id, or a client id of a user."""

    user: EntityName = None
    client_id: EntityName = None

    @property
    def path(self) -> str:
        """The znode that holds its quotas."""
        if self.user is None:
            return f"{CONFIG_CLIENTS}/{encode_name(self.client_id)}"
        if self.client_id is None:
            return f"{CONFIG_USERS}/{encode_name(self.user)}"
        return f"{clients_path(self.user)}/{encode_name(self.client_id)}"


def clients_path(user: EntityName) -> str:
    """The parent of the client ids of a user."""
    return f"{CONFIG_USERS}/{encode_name(user)}/clients"


def encode_name(name: EntityName) -> str:
    """Encode a name as part of a path, in which ZooKeeper takes no dots alone."""
    if name is DEFAULT:
        return DEFAULT.value
    if not isinstance(name, str) or not name:
        raise ValueError("the name of a quota entity must not be empty")
    encoded = quote(name, safe="").replace("~", "%7E")
    return encoded.replace(".", "%2E") if name in DOTS else encoded


def decode_name(part: str) -> str | Default:
    """From a part of a path."""
    return DEFAULT if part == DEFAULT.value else unquote(part)
