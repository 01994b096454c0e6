"""ListGroups (16), v0 to v5: the groups that this broker coordinates. v4 filters by state (KIP-518), v5 by type
(KIP-848).

- Filters ignore case; unknown states and types match nothing. All groups are classic groups.
- COORDINATOR_LOAD_IN_PROGRESS while some groups are being loaded: a list of the others would look complete.
"""

from collections.abc import Collection
from functools import partial

from pipeline.broker.groups.group import Group
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.net.answers import PendingAnswer
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"
GROUPS_AT_ONCE = 2000
"""Groups that are listed before other requests have a turn."""
GROUP_BYTES = 150
"""Approximate bytes of a group in an answer, built and encoded, without its name."""


def handle(
    broker: BrokerContext, request: ListGroupsRequest, _version: int, _caller: Caller
) -> ListGroupsResponse | PendingAnswer:
    """Answer at once, unless there are very many groups."""
    if broker.groups.journal.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    if types and CLASSIC not in types:
        return ListGroupsResponse()
    groups = broker.groups.coordinator.groups
    if len(groups) > GROUPS_AT_ONCE:
        size_bytes = sum(GROUP_BYTES + len(group.id) for group in groups)
        return PendingAnswer(partial(_list_in_turns, broker, states), size_bytes)
    return ListGroupsResponse(groups=tuple(_listed(group) for group in groups if _is_wanted(group, states)))


async def _list_in_turns(broker: BrokerContext, states: Collection[str]) -> ListGroupsResponse:
    if broker.groups.journal.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    turns = Turns(GROUPS_AT_ONCE)
    listed = []
    for group in broker.groups.coordinator.groups:
        if _is_wanted(group, states):
            listed.append(_listed(group))
        await turns.after()
    return ListGroupsResponse(groups=listed)


def _is_wanted(group: Group, states: Collection[str]) -> bool:
    return not states or group.state.lower() in states


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.id, protocol_type=group.protocol_type or "", group_state=group.state, group_type=CLASSIC
    )
