"""Quota entities as clients name them (KIP-546): decoded, checked, matched and encoded. Pure.

An entity is a list of types and names, null for the default. Types are `user` and `client-id`. Every other type is
refused, also `ip`, whose quotas limit the rate of new connections: no quota is accepted and then ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pipeline.broker.quotas.table import QuotaKind
from pipeline.coordination.quota_znodes import DEFAULT, EntityName, QuotaEntity, encode_name
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_client_quotas import OpData
from pipeline.protocol.messages.describe_client_quotas import ComponentData, EntityData, MatchType

USER = "user"
CLIENT_ID = "client-id"
MAX_ENTITIES = 10_000
"""Maximum number of entities with quotas: each broker reads all names after each change."""
MAX_NAME_BYTES = 750
"""Maximum length of a name as an element of a znode's path."""


class _NamedType(Protocol):
    @property
    def entity_type(self) -> str: ...

    @property
    def entity_name(self) -> str | None: ...


def read_entity(parts: Sequence[_NamedType]) -> QuotaEntity:
    """Return the entity that a client names. Raises KafkaError."""
    _check_types([part.entity_type for part in parts])
    if not parts:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity.")
    names: dict[str, EntityName] = {}
    for part in parts:
        if part.entity_name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {part.entity_type} not supported.")
        names[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    return QuotaEntity(user=names.get(USER), client_id=names.get(CLIENT_ID))


def check_room(entity: QuotaEntity, followed: int) -> None:
    """Raise KafkaError if the entity must not be added to `followed` others."""
    for name in (entity.user, entity.client_id):
        if name is not None and len(encode_name(name)) > MAX_NAME_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The name of a quota entity takes more than {MAX_NAME_BYTES} bytes."
            )
    if followed >= MAX_ENTITIES:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"There are quotas for {MAX_ENTITIES} entities already.")


def entity_data(entity: QuotaEntity) -> tuple[EntityData, ...]:
    """Return the entity as DescribeClientQuotas answers it."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return tuple(
        EntityData(entity_type=entity_type, entity_name=None if name is DEFAULT else name)
        for entity_type, name in named
        if name is not None
    )


def check_filter(components: Sequence[ComponentData]) -> None:
    """Raise KafkaError if a filter is invalid."""
    _check_types([component.entity_type for component in components])
    for component in components:
        if component.match_type not in set(MatchType):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}.")
        if component.match_type == MatchType.EXACT and component.match is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"No name to match for {component.entity_type}.")


def matches(entity: QuotaEntity, components: Iterable[ComponentData], *, strict: bool) -> bool:
    """True if the entity has all names of the filter, and, if `strict`, no others."""
    names = {USER: entity.user, CLIENT_ID: entity.client_id}
    for component in components:
        name = names.pop(component.entity_type)
        if name is None:
            return False
        if component.match_type == MatchType.EXACT and name != component.match:
            return False
        if component.match_type == MatchType.DEFAULT and name is not DEFAULT:
            return False
    return not strict or all(name is None for name in names.values())


def alter(settings: Mapping[str, str], operations: Sequence[OpData]) -> Mapping[str, str]:
    """Return the settings of an entity after these operations. Raises KafkaError."""
    known = {kind.value for kind in QuotaKind}
    altered = dict(settings)
    for operation in operations:
        if operation.key not in known:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid configuration key {operation.key}: this broker keeps {' and '.join(sorted(known))}.",
            )
        if operation.remove:
            altered.pop(operation.key, None)
        elif not operation.value >= 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {operation.key} must be greater than 0.")
        elif operation.value != int(min(operation.value, 2.0**62)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configuration {operation.key} must be a Long value.")
        else:
            altered[operation.key] = str(int(operation.value))
    return altered


def _check_types(types: Sequence[str]) -> None:
    for entity_type in types:
        if entity_type not in {USER, CLIENT_ID}:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Quotas of entity type '{entity_type}' are not supported; use {USER} or {CLIENT_ID}.",
            )
    if len(set(types)) < len(types):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate entity types are not allowed.")
