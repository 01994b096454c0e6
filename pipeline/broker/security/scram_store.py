"""SCRAM credentials in memory, as ZooKeeper has them."""

from collections.abc import Iterator, Mapping

from pipeline.coordination.scram_znodes import ScramCredential, ScramHash
from pipeline.diagnostics import get_logger

logger = get_logger(__name__)


class ScramStore:
    """The credentials of all users. Empty until `set` is called for each."""

    def __init__(self) -> None:
        self._by_user: dict[str, dict[ScramHash, ScramCredential]] = {}

    def set(self, user: str, settings: Mapping[str, str]) -> None:
        """Take over the credentials among all settings of a user."""
        found = {}
        for kind in ScramHash:
            if kind.value in settings:
                try:
                    found[kind] = ScramCredential.decode(settings[kind.value])
                except ValueError as error:
                    logger.error("credential_unreadable", user=user, mechanism=kind.value, error=str(error))
        if found:
            self._by_user[user] = found
        else:
            self._by_user.pop(user, None)

    def find(self, user: str, kind: ScramHash) -> ScramCredential | None:
        """Return the credential of a user for a mechanism."""
        return self._by_user.get(user, {}).get(kind)

    def users(self) -> Iterator[str]:
        """Yield the names of all users with credentials, in order."""
        yield from sorted(self._by_user)

    def of(self, user: str) -> Mapping[ScramHash, ScramCredential]:
        """Return the credentials of a user, none if there is no such user."""
        return self._by_user.get(user, {})
