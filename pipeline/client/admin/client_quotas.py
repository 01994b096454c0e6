"""Quotas of users, client ids and addresses: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.client.cluster.cluster import Cluster
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    OpData,
)
from pipeline.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
)

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
DEFAULT_NAME = "<default>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaEntity:
    """A user, a client id, a client id of a user, or an IP address. None: not named; DEFAULT_NAME: all without own
    quotas. Only Apache Kafka has quotas of addresses (KIP-612).
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def named(self) -> list[tuple[str, str]]:
        """The types and names of the entity."""
        parts = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return [(kind, name) for kind, name in parts if name is not None]

    def __str__(self) -> str:
        return " ".join(f"{kind} {name}" for kind, name in self.named)


async def describe_client_quotas(cluster: Cluster, *, timeout_s: float) -> dict[ClientQuotaEntity, Mapping[str, float]]:
    """Return all quotas of entities, by their names (`producer_byte_rate`). Raises KafkaError."""
    response: DescribeClientQuotasResponse = await cluster.request_any(
        DescribeClientQuotasRequest(), timeout_s=timeout_s
    )
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"quotas: {response.error_message or 'refused'}")
    found: dict[ClientQuotaEntity, Mapping[str, float]] = {}
    for entry in response.entries or ():
        names = {part.entity_type: _shown(part.entity_name) for part in entry.entity}
        entity = ClientQuotaEntity(user=names.get(USER), client_id=names.get(CLIENT_ID), ip=names.get(IP))
        found[entity] = {value.key: value.value for value in entry.values}
    return found


async def alter_client_quotas(
    cluster: Cluster, changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]], *, timeout_s: float
) -> None:
    """Set quotas; None removes one. Other quotas stay. Raises KafkaError for the first entity that is refused.

    A request whose answer was lost may have been done, and is safe to repeat. NaN is refused here: Apache Kafka would
    keep it (INVALID_REQUEST).
    """
    for entity, quotas in changes.items():
        for key, value in quotas.items():
            if value is not None and math.isnan(value):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"quotas of {entity}: {key} must be a number; none changed")
    entries = [
        EntryData(
            entity=_parts(entity),
            ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
        )
        for entity, quotas in changes.items()
    ]
    response: AlterClientQuotasResponse = await cluster.request_any(
        AlterClientQuotasRequest(entries=entries), timeout_s=timeout_s
    )
    refused = [entry for entry in response.entries if entry.error_code != ErrorCode.NONE]
    if refused:
        entry, count = refused[0], len(response.entries)
        named = " ".join(f"{part.entity_type} {_shown(part.entity_name)}" for part in entry.entity)
        parts = f"; quotas of {count - len(refused)} of {count} entities were changed" if count > 1 else ""
        raise KafkaError(entry.error_code, f"quotas of {named}: {entry.error_message or 'refused'}{parts}")


def _parts(entity: ClientQuotaEntity) -> list[EntityData]:
    return [
        EntityData(entity_type=kind, entity_name=None if name == DEFAULT_NAME else name) for kind, name in entity.named
    ]


def _shown(name: str | None) -> str:
    return DEFAULT_NAME if name is None else name
