"""DeleteGroups (42): groups that nobody is in go, with their offsets (KIP-229)."""

from collections.abc import Awaitable

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns, weight_of
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

GROUPS_AT_ONCE = 500
"""Groups that are refused, before others have their turn."""


def handle(
    broker: BrokerContext, request: DeleteGroupsRequest, _version: int, _caller: Caller
) -> Awaitable[DeleteGroupsResponse]:
    """Answers when it is in the journal that they are gone."""
    return _handle(broker, list(dict.fromkeys(request.groups_names)))


async def _handle(broker: BrokerContext, group_ids: list[str]) -> DeleteGroupsResponse:
    results = []
    turns = Turns(GROUPS_AT_ONCE)
    for group_id in group_ids:
        results.append(DeletableGroupResult(group_id=group_id, error_code=await _delete(broker, group_id)))
        await turns.after(weight_of(group_id))
    return DeleteGroupsResponse(results=results)


async def _delete(broker: BrokerContext, group_id: str) -> ErrorCode:
    """Offsets first: if the rest fails, the group is still there to be deleted again."""
    try:
        await broker.groups.coordinator.remove_group(group_id, broker.groups.offsets.delete)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
