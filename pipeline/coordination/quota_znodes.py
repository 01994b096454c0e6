"""The znodes of client quotas, in Kafka's layout. Pure.

`/config/users/<user>`, `/config/users/<user>/clients/<client-id>` and `/config/clients/<client-id>`. The name
`<default>` stands for all users or client ids without a znode of their own.

Names are percent-encoded as by Kafka's Sanitizer, so that any name can be part of a path. A user's znode may also hold
other settings than quotas (SCRAM credentials); a change of quotas keeps them.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

CONFIG_USERS = "/config/users"
CONFIG_CLIENTS = "/config/clients"
DOTS = frozenset({".", ".."})


class Default(Enum):
    """The name that stands for all users or client ids without an entity of their own."""

    DEFAULT = "<default>"


DEFAULT = Default.DEFAULT

EntityName = str | Default | None
"""A name or the default; None if the entity has no name of this type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """The owner of a quota: a user, a client id, or a client id of a user."""

    user: EntityName = None
    client_id: EntityName = None

    @property
    def path(self) -> str:
        """The znode that holds the quotas of the entity."""
        if self.user is None:
            return f"{CONFIG_CLIENTS}/{encode_name(self.client_id)}"
        if self.client_id is None:
            return f"{CONFIG_USERS}/{encode_name(self.user)}"
        return f"{clients_path(self.user)}/{encode_name(self.client_id)}"


def clients_path(user: EntityName) -> str:
    """Return the parent znode of a user's client ids."""
    return f"{CONFIG_USERS}/{encode_name(user)}/clients"


def encode_name(name: EntityName) -> str:
    """Encode a name as an element of a path; ZooKeeper refuses the elements `.` and `..`."""
    if name is DEFAULT:
        return DEFAULT.value
    if not isinstance(name, str) or not name:
        raise ValueError("the name of a quota entity must not be empty")
    encoded = quote(name, safe="").replace("~", "%7E")
    return encoded.replace(".", "%2E") if name in DOTS else encoded


def decode_name(part: str) -> str | Default:
    """Decode a quota entity name from a path element."""
    return DEFAULT if part == DEFAULT.value else unquote(part)
