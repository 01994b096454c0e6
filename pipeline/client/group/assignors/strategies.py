"""The assignors by Kafka's names, and how their members rebalance. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.client.group.assignors.cooperative import assign_cooperatively, encode_generation
from pipeline.client.group.assignors.members import Assigned, JoinedMember
from pipeline.client.group.assignors.range_assignor import assign_ranges
from pipeline.client.group.assignors.round_robin import assign_round_robin
from pipeline.client.group.assignors.sticky import assign_sticky, encode_previous
from pipeline.model import TopicPartition


def _no_user_data(_previous: Collection[TopicPartition], _generation: int) -> bytes | None:
    return None


def _generation_alone(_previous: Collection[TopicPartition], generation: int) -> bytes | None:
    return encode_generation(generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """An assignor. `is_cooperative`: members keep their partitions while they join, and give up only those that move.

    `user_data` makes a member's user data of the partitions that it has or last had, and their generation.
    """

    assign: Callable[[Mapping[str, int], Sequence[JoinedMember]], Assigned]
    is_cooperative: bool = False
    user_data: Callable[[Collection[TopicPartition], int], bytes | None] = _no_user_data


STRATEGIES: Mapping[str, Strategy] = {
    "range": Strategy(assign=assign_ranges),
    "roundrobin": Strategy(assign=assign_round_robin),
    "sticky": Strategy(assign=assign_sticky, user_data=encode_previous),
    "cooperative-sticky": Strategy(assign=assign_cooperatively, is_cooperative=True, user_data=_generation_alone),
}
