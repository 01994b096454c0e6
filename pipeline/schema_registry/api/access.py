"""The one door for who may do what to which subjects.

A role says what a user may do at all (`roles.REGISTRY_ROLES`); the rules of `subjects` say with which subjects. The
first rule whose pattern fits a subject counts, and a subject without one follows the role alone. Administrators, and
registries without users, know no rules.

Invariant: what is shown belongs to a subject that its user may read. Names stand for others (aliases, subjects of other
contexts), so that handlers check the subject that was found, not only the one that was named.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from starlette.requests import Request

from pipeline.net.http.roles import http_user_of
from pipeline.net.http.users import HttpUser, Role
from pipeline.schema_registry.config import SubjectRights
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.contexts import split_subject

_ACTION = "registry.action"


class Action(StrEnum):
    """Kinds of requests."""

    READ = "READ"
    WRITE = "WRITE"
    DELETE = "DELETE"
    READ_SETTINGS = "READ_SETTINGS"
    WRITE_SETTINGS = "WRITE_SETTINGS"

    @property
    def changes(self) -> bool:
        """True if the request may write to the log."""
        return self not in {Action.READ, Action.READ_SETTINGS}


class SubjectAccess:
    """Rights of users to subjects, by rules."""

    def __init__(self, rules: Sequence[SubjectRights] = ()) -> None:
        self._rules = tuple(rules)

    def begin(self, request: Request, action: Action, subject: str | None) -> None:
        """Check a request before it is handled, and note what it does. Raises RegistryError 40301."""
        request.scope[_ACTION] = action
        if subject is None:
            return
        if action is Action.WRITE_SETTINGS and not split_subject(subject)[1] and self._is_bound(request):
            raise _denied(request, action, subject)
        self.require(request, subject)

    def require(self, request: Request, subject: str, *, reads: bool = False) -> None:
        """Check that the user may do to a subject what the request does, or, with `reads`, read it.

        Raises RegistryError 40301.
        """
        action = Action.READ if reads else request.scope[_ACTION]
        if not self._may(http_user_of(request.scope), action, subject):
            raise _denied(request, action, subject)

    def reader(self, request: Request) -> Callable[[str], bool]:
        """Return a function that tells whether the user may read a subject."""
        user = http_user_of(request.scope)
        return lambda subject: self._may(user, Action.READ, subject)

    def viewer(self, request: Request) -> str | None:
        """Return a name that differs for users who may see different lists, None for those who may see all."""
        user = http_user_of(request.scope)
        return user.name if user is not None and self._rules and user.role < Role.ADMIN else None

    @staticmethod
    def _is_bound(request: Request) -> bool:
        user = http_user_of(request.scope)
        return user is not None and user.role < Role.ADMIN

    def _may(self, user: HttpUser | None, action: Action, subject: str) -> bool:
        if user is None or user.role >= Role.ADMIN:
            return True
        rule = next((rule for rule in self._rules if rule.fits(subject)), None)
        return rule is None or rule.names(user.name, writes=action.changes)


def _denied(request: Request, action: Action, subject: str) -> RegistryError:
    user = http_user_of(request.scope)
    name = "nobody" if user is None else user.name
    return RegistryError(Code.DENIED, f"User {name} is denied operation {action.value} on Subject: {subject}")
