"""Audit log of the authorizer: who asked for what from where, and whether it was allowed.

One line for each request, operation and kind of resource, as `kafka.authorizer.logger` writes them in Kafka: refusals
always, what is allowed if that logger has the level DEBUG. A line names at most `MAX_LOGGED_NAMES` resources, with at
most `MAX_NAME_LETTERS_LOGGED` letters each, and their number, so that a request cannot fill the log.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from pipeline.broker.security.acl_table import Actor
from pipeline.coordination.acl_znodes import camel_case
from pipeline.diagnostics import OwnLevelLogger
from pipeline.protocol.api import ApiKey
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType

AUTHORIZER_LOGGER = "kafka.authorizer.logger"
MAX_LOGGED_NAMES = 1000
MAX_NAME_LETTERS_LOGGED = 250


class AuthorizerLogLevel(StrEnum):
    """Level of the log."""

    OFF = "OFF"
    INFO = "INFO"
    DEBUG = "DEBUG"


class AclDecision(NamedTuple):
    """A decision about one resource."""

    operation: AclOperation
    resource_type: AclResourceType
    name: str
    is_allowed: bool


@dataclass(slots=True)
class AuthorizerLog:
    """The log, and the number of refusals, which metrics read."""

    level: AuthorizerLogLevel = AuthorizerLogLevel.INFO
    denied: Counter[tuple[AclOperation, AclResourceType]] = field(default_factory=Counter)
    """Refused resources, each time that one is refused."""
    _logger: OwnLevelLogger = field(default_factory=lambda: OwnLevelLogger(AUTHORIZER_LOGGER))

    @property
    def takes_allowed(self) -> bool:
        """True if decisions that allow are to be written, too."""
        return self.level is AuthorizerLogLevel.DEBUG

    def write(
        self, actor: Actor, listener: str, client_id: str | None, api_key: ApiKey, decisions: Sequence[AclDecision]
    ) -> None:
        """Count and log the decisions about one request."""
        names: defaultdict[tuple[AclOperation, AclResourceType, bool], list[str]] = defaultdict(list)
        for operation, resource_type, name, is_allowed in decisions:
            names[operation, resource_type, is_allowed].append(name)
        for (operation, resource_type, is_allowed), found in names.items():
            if not is_allowed:
                self.denied[operation, resource_type] += len(found)
            if self.level is AuthorizerLogLevel.OFF:
                continue
            fields: dict[str, Any] = {
                "principal": actor.principal,
                "host": actor.host,
                "listener": listener,
                "client_id": None if client_id is None else client_id[:MAX_NAME_LETTERS_LOGGED],
                "request": api_key.request.__name__.removesuffix("Request"),
                "operation": camel_case(operation),
                "resource_type": camel_case(resource_type),
                "resources": [name[:MAX_NAME_LETTERS_LOGGED] for name in found[:MAX_LOGGED_NAMES]],
                "resource_count": len(found),
                "allowed": is_allowed,
            }
            if is_allowed:
                self._logger.debug("authorization_allowed", **fields)
            else:
                self._logger.info("authorization_denied", **fields)
