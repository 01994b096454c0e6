"""AlterClientQuotas (49), v0 to v1: set and remove quotas in ZooKeeper, where every broker reads them (KIP-546).

Each entity is a change of its own: if ZooKeeper's answer is lost, or another writer was quicker, it is decided anew.
"""

from collections import Counter
from dataclasses import replace

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.quotas.entities import alter, check_room, read_entity
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.coordination.interface import NodeValue
from pipeline.coordination.quota_znodes import QuotaEntity
from pipeline.coordination.update import update
from pipeline.coordination.znodes import decode_config, encode_config
from pipeline.errors import NodeContendedError, PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    EntryData,
)
from pipeline.protocol.messages.describe_client_quotas import EntityData

ENTITIES_AT_ONCE = 500
"""Entities that are refused before other requests have a turn."""
MAX_PARTS = 4
"""Parts of an entity that are read and answered: among so many, one type is unknown or appears twice."""
TIMEOUT_S = 30.0
"""Time for all entities of a request."""


async def handle(
    broker: BrokerContext, request: AlterClientQuotasRequest, _version: int, _caller: Caller
) -> AlterClientQuotasResponse:
    """Answer when all is written."""
    entries = [replace(entry, entity=entry.entity[:MAX_PARTS]) for entry in request.entries]
    named = Counter(frozenset(entry.entity) for entry in entries)
    deadline = trio.current_time() + TIMEOUT_S
    answered = []
    turns = Turns(ENTITIES_AT_ONCE)
    for entry in entries:
        if named[frozenset(entry.entity)] > 1:
            answered.append(_answer(entry, ErrorCode.INVALID_REQUEST, "An entity is named more than once."))
        else:
            answered.append(await _alter(broker, entry, deadline, validate_only=request.validate_only))
        await turns.after()
    return AlterClientQuotasResponse(entries=tuple(answered))


async def _alter(broker: BrokerContext, entry: EntryData, deadline: float, *, validate_only: bool) -> AlteredEntryData:
    try:
        entity = read_entity(entry.entity)
        if validate_only:
            alter({}, entry.ops)
        else:
            with trio.fail_at(deadline):
                await _write(broker, entity, entry)
    except trio.TooSlowError:
        return _answer(entry, ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not answer in time.")
    except PipelineError as error:
        failure = failure_of(error)
        return _answer(entry, failure.code, failure.message)
    return _answer(entry, ErrorCode.NONE, None)


async def _write(broker: BrokerContext, entity: QuotaEntity, entry: EntryData) -> None:
    def decide(found: NodeValue | None) -> bytes | None:
        settings = {} if found is None else decode_config(entity.path, found.data)
        altered = alter(settings, entry.ops)
        if altered == settings:
            return None
        if found is None:
            check_room(entity, broker.quotas.table.followed)
        return encode_config(altered)

    try:
        await update(broker.session.zookeeper, entity.path, decide)
    except NodeContendedError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the quota; try again.") from error


def _answer(entry: EntryData, code: ErrorCode, message: str | None) -> AlteredEntryData:
    return AlteredEntryData(
        error_code=code,
        error_message=message,
        entity=tuple(EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity),
    )
