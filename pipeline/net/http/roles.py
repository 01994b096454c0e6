"""Roles of the users of HTTP servers, and the guard that stands before each route.

Invariants:
- A role is checked at the route that was found, with the path as the routes know it: no other spelling of a path leads
  around the check.
- A route without a row in its service's table is served to nobody: `guarded` raises.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.net.http.users import HttpUser, Role

USER = "user"
"""Key of a scope under which the user of a request stands, None if the path needs none."""


RoleTable = Mapping[tuple[str, str], Role]
"""The role that each method of each path needs, the path as its route has it. HEAD needs what GET needs."""

OPERATIONS_ROLES: RoleTable = {
    ("GET", "/metrics"): Role.READ,
    ("GET", "/healthz"): Role.READ,
    ("GET", "/readyz"): Role.READ,
}


class UnlistedRouteError(LookupError):
    """A route has no row in the table of roles."""


def http_user_of(scope: Scope) -> HttpUser | None:
    """Return the user of a request, None for a server or a path that needs none."""
    user: HttpUser | None = scope.get(USER)
    return user


def guarded(routes: Sequence[BaseRoute], roles: RoleTable, open_paths: Collection[str] = ()) -> list[BaseRoute]:
    """Have each route check the user's role before it answers, but for `open_paths`. Raises UnlistedRouteError."""
    for route in routes:
        if not isinstance(route, Route):
            raise UnlistedRouteError(f"{route} is no route with methods and one path")
        needed = {method: _role(roles, method, route.path) for method in route.methods or {"GET"}}
        if route.path not in open_paths:
            route.app = _Guard(route.app, needed)
    return list(routes)


def _role(roles: RoleTable, method: str, path: str) -> Role:
    try:
        return roles["GET" if method == "HEAD" else method, path]
    except KeyError:
        raise UnlistedRouteError(f"{method} {path} has no role") from None


class _Guard:
    """A route's answer, for users with the role that the method needs."""

    def __init__(self, answer: ASGIApp, needed: Mapping[str, Role]) -> None:
        self._answer = answer
        self._needed = needed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user, needed = http_user_of(scope), self._needed[scope["method"]]
        if user is not None and user.role >= needed:
            await self._answer(scope, receive, send)
            return
        name = "nobody" if user is None else f"{user.name} with role {user.role}"
        await refused_answer(403, f"{name} may not do this: it needs the role {needed}")(scope, receive, send)


def refused_answer(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that is not allowed, in the form of Confluent's registry and of ours."""
    content: dict[str, Any] = {"error_code": status, "message": reason}
    return JSONResponse(content, status, headers)
