"""Standing of a broker's replicas: when a restarted broker has caught up, and when a broker may stop."""

import uuid
from typing import Any

import pytest

from pipeline.broker.cluster.standing import partitions_that_need, replicas_out_of_sync
from pipeline.broker.cluster.view import PartitionView, TopicView
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.model import BrokerId, TopicPartition

ONE = BrokerId(1)
ALL = {1, 2, 3}
DEFAULTS = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "none:1"})


def topic(*isr: int, min_isr: int = 2, replicas: Any = (1, 2, 3), **changes: Any) -> TopicView:
    partition = PartitionView(replicas=replicas, isr=tuple(map(BrokerId, isr)), **changes)
    settings = topic_settings({"min.insync.replicas": str(min_isr)}, DEFAULTS)
    return TopicView(name="t", topic_id=uuid.uuid4(), partitions={0: partition}, settings=settings)


@pytest.mark.parametrize(
    ("seen", "lags"),
    [
        (topic(1, 2, 3), False),
        (topic(2, 3), True),
        (topic(2), True),
        (topic(replicas=(1,)), True),
        (topic(2, replicas=(2, 3)), False),
        (topic(2, 3, replicas=(2, 3, 1), adding=(ONE,)), False),
        (topic(2, 3, removing=(ONE,)), True),
    ],
)
def test_a_broker_has_caught_up_once_all_its_replicas_are_in_sync(seen: Any, lags: Any) -> None:
    assert list(replicas_out_of_sync([seen], ONE)) == [TopicPartition("t", 0)] * lags


@pytest.mark.parametrize(
    ("seen", "is_needed", "staying"),
    [
        (topic(1, 2, 3), False, ALL),
        (topic(1, 2), True, ALL),
        (topic(1, 2, min_isr=1), False, ALL),
        (topic(1, min_isr=1), True, ALL),
        (topic(1), True, ALL),
        (topic(2, 3), False, ALL),  # itself out of sync: nobody loses it
        (topic(1, replicas=(1,)), False, ALL),  # nobody to wait for
        (topic(1, 2, replicas=(1, 2)), False, ALL),  # all are in sync, however few
        (topic(1, 2, replicas=(1, 2, 3), adding=(BrokerId(3),)), False, ALL),
        (topic(1, 2, 3), True, {1, 2}),  # another one stops at the same time, or was killed
        (topic(1, 2, 3), True, {2}),
        (topic(1, 2, 3, min_isr=1), False, {1, 2}),
        (topic(1, 2, replicas=(1, 2)), True, {1}),
    ],
)
def test_a_broker_may_stop_unless_others_must_catch_up_first(seen: Any, is_needed: Any, staying: Any) -> None:
    assert list(partitions_that_need([seen], ONE, staying)) == [TopicPartition("t", 0)] * is_needed
