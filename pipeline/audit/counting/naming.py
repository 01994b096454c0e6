"""Names for the numbers under which counters keep their partitions. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pipeline.audit.events.report import ReportedTopic, Rows


class PartitionName(NamedTuple):
    """A partition of a topic as reports name it."""

    topic: ReportedTopic
    partition: int


def name_partitions(names: Mapping[int, PartitionName], *tables: Rows) -> tuple[ReportedTopic, ...]:
    """Return the topics of a report with these tables, whose columns `topic` and `partition` are set in place.

    `partition` held the number of each row's partition. Tables have the dtypes ROW or POSITION.
    """
    numbers = np.unique(np.concatenate([table["partition"] for table in tables]))
    topics: dict[ReportedTopic, int] = {}
    found = [names[number] for number in numbers.tolist()]
    topic = np.array([topics.setdefault(name.topic, len(topics)) for name in found], np.int32)
    partition = np.array([name.partition for name in found], np.int32)
    for table in tables:
        at = np.searchsorted(numbers, table["partition"])
        table["topic"], table["partition"] = topic[at], partition[at]
    return tuple(topics)
