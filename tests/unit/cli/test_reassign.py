"""`pipeline cluster reassign`: what a plan means for partitions that are being moved."""

import pytest

from pipeline.cli.reassign import _moves
from pipeline.client.admin import Reassignment
from pipeline.client.metadata import ClusterView, PartitionView, TopicView
from pipeline.model import BrokerId, TopicPartition

T0 = TopicPartition("t", 0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.mark.parametrize(
    ("target", "is_moved"), [((TWO,), False), ((TWO, ONE), True), ((ONE,), True), ((TWO, THREE), True)]
)
def test_a_move_under_way_is_replaced_unless_it_leads_where_the_plan_does(
    target: tuple[BrokerId, ...], is_moved: bool
) -> None:
    partition = PartitionView(leader=ONE, replicas=(TWO, ONE), isr=(ONE,))
    view = ClusterView(topics={"t": TopicView(name="t", partitions={0: partition})})
    moving = {T0: Reassignment(replicas=(TWO, ONE), adding=(TWO,), removing=(ONE,))}
    assert bool(_moves(view, moving, {T0: target})) is is_moved
    if is_moved:
        assert list(_moves(view, moving, {T0: target})[T0].now) == [ONE]
