"""ListGroups (16): the groups that this broker coordinates; v4 filters by state (KIP-518), v5 by type (KIP-848).

Case does not matter in filters; a state or type that nobody knows matches nothing. All groups here are classic ones.
"""

from pipeline.broker.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"


def handle(broker: BrokerContext, request: ListGroupsRequest, _version: int, _caller: Caller) -> ListGroupsResponse:
    """Answers at once. While some groups are still being loaded nobody is told that there are only the others."""
    if broker.journal.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    if types and CLASSIC not in types:
        return ListGroupsResponse()
    return ListGroupsResponse(
        groups=tuple(
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=CLASSIC,
            )
            for group in broker.coordinator.groups
            if not states or group.state.lower() in states
        )
    )
