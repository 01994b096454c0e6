"""DeleteGroups (42), v0 to v2: delete empty groups and their committed offsets (KIP-229)."""

from collections.abc import Awaitable

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns, weight_of
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

GROUPS_AT_ONCE = 500
"""Groups that are refused before other requests have a turn."""


def handle(
    broker: BrokerContext, request: DeleteGroupsRequest, _version: int, _caller: Caller
) -> Awaitable[DeleteGroupsResponse]:
    """Answer when the journal holds the deletions."""
    return _handle(broker, list(dict.fromkeys(request.groups_names)))


async def _handle(broker: BrokerContext, group_ids: list[str]) -> DeleteGroupsResponse:
    results = []
    turns = Turns(GROUPS_AT_ONCE)
    for group_id in group_ids:
        results.append(DeletableGroupResult(group_id=group_id, error_code=await _delete(broker, group_id)))
        await turns.after(weight_of(group_id))
    return DeleteGroupsResponse(results=results)


async def _delete(broker: BrokerContext, group_id: str) -> ErrorCode:
    try:  # offsets first: if the rest fails, the group still exists and can be deleted again
        await broker.groups.coordinator.remove_group(group_id, broker.groups.offsets.delete)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
