"""SCRAM credentials in memory, as ZooKeeper has them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pipeline.coordination.scram_znodes import ScramCredential, ScramHash, ScramShape
from pipeline.diagnostics import get_logger

logger = get_logger(__name__)

MAX_SHAPES = 16
"""Bound of the shapes that unknown users are given."""


class ScramStore:
    """The credentials of all users. Empty until `set` is called for each."""

    def __init__(self) -> None:
        self._by_user: dict[str, dict[ScramHash, ScramCredential]] = {}
        self._shapes: dict[ScramHash, Counter[ScramShape]] = {kind: Counter() for kind in ScramHash}

    def set(self, user: str, settings: Mapping[str, str]) -> None:
        """Take over the credentials among all settings of a user."""
        found = {}
        for kind in ScramHash:
            if kind.value in settings:
                try:
                    found[kind] = ScramCredential.decode(settings[kind.value])
                except ValueError as error:
                    logger.error("credential_unreadable", user=user, mechanism=kind.value, error=str(error))
        for kind, credential in self._by_user.pop(user, {}).items():
            shapes = self._shapes[kind]
            shapes[credential.shape] -= 1
            if not shapes[credential.shape]:
                del shapes[credential.shape]
        if found:
            self._by_user[user] = found
        for kind, credential in found.items():
            self._shapes[kind][credential.shape] += 1

    def shapes(self, kind: ScramHash) -> Sequence[ScramShape]:
        """Return the most frequent shapes of credentials of a mechanism."""
        return [shape for shape, _ in self._shapes[kind].most_common(MAX_SHAPES)]

    def find(self, user: str, kind: ScramHash) -> ScramCredential | None:
        """Return the credential of a user for a mechanism."""
        return self._by_user.get(user, {}).get(kind)

    def users(self) -> Iterator[str]:
        """Yield the names of all users with credentials, in order."""
        yield from sorted(self._by_user)

    def of(self, user: str) -> Mapping[ScramHash, ScramCredential]:
        """Return the credentials of a user, none if there is no such user."""
        return self._by_user.get(user, {})
