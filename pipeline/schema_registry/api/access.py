"""The one door for who asks the registry, and what they may do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """Kinds of requests, as rights may be given for them."""

    READ = "READ"
    WRITE = "WRITE"
    DELETE = "DELETE"
    READ_SETTINGS = "READ_SETTINGS"
    WRITE_SETTINGS = "WRITE_SETTINGS"

    @property
    def changes(self) -> bool:
        """True if the request may write to the log."""
        return self not in {Action.READ, Action.READ_SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCaller:
    """The client of a request, as far as it is known."""

    address: str


Authorize = Callable[[RegistryCaller, Action, str | None], None]
"""Raises RegistryError if the caller may not do this to a subject, or to the registry (None)."""


def everyone_may(_caller: RegistryCaller, _action: Action, _subject: str | None) -> None:
    """Allow everything."""
