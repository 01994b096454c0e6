"""Quotas of users and client ids, read and changed: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

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
DEFAULT_NAME = "<default>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaEntity:
    """A user, a client id, or a client id of a user. None: not named; DEFAULT_NAME: all without own quotas."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        named = ((USER, self.user), (CLIENT_ID, self.client_id))
        return " ".join(f"{kind} {name}" for kind, name in named if name is not None)


async def describe_client_quotas(cluster: Cluster, *, timeout_s: float) -> dict[ClientQuotaEntity, Mapping[str, float]]:
    """Return the quotas of all users and client ids, by their names (`producer_byte_rate`). Raises KafkaError."""
    response: DescribeClientQuotasResponse = await cluster.request_any(
        DescribeClientQuotasRequest(), timeout_s=timeout_s
    )
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"quotas: {response.error_message or 'refused'}")
    found: dict[ClientQuotaEntity, Mapping[str, float]] = {}
    for entry in response.entries or ():
        names = {part.entity_type: part.entity_name or DEFAULT_NAME for part in entry.entity}
        entity = ClientQuotaEntity(user=names.get(USER), client_id=names.get(CLIENT_ID))
        found[entity] = {value.key: value.value for value in entry.values}
    return found


async def alter_client_quotas(
    cluster: Cluster, changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]], *, timeout_s: float
) -> None:
    """Set quotas; None removes one. Other quotas stay. Raises KafkaError for the first entity that is refused.

    A request whose answer was lost may have been done, and is safe to repeat.
    """
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
    for entry in response.entries:
        if entry.error_code != ErrorCode.NONE:
            named = " ".join(f"{part.entity_type} {part.entity_name or DEFAULT_NAME}" for part in entry.entity)
            raise KafkaError(entry.error_code, f"quotas of {named}: {entry.error_message or 'refused'}")


def _parts(entity: ClientQuotaEntity) -> list[EntityData]:
    return [
        EntityData(entity_type=kind, entity_name=None if name == DEFAULT_NAME else name)
        for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id))
        if name is not None
    ]
