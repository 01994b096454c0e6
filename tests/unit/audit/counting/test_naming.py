"""Numbers of partitions become topics and partitions of a report."""

import numpy as np

from pipeline.audit.counting.naming import PartitionName, name_partitions
from pipeline.audit.events.report import POSITION, ROW, ReportedTopic


def test_rows_and_positions_are_named_by_one_list_of_topics() -> None:
    clicks, views = ReportedTopic("clicks", "id"), ReportedTopic("views")
    names = {
        7: PartitionName(views, 3),
        9: PartitionName(clicks, 0),
        11: PartitionName(views, 5),
        12: PartitionName(clicks, 1),
    }
    rows, positions = np.zeros(3, ROW), np.zeros(2, POSITION)
    rows["partition"], positions["partition"] = [11, 7, 11], [9, 7]
    topics = name_partitions(names, rows, positions)
    assert topics == (views, clicks)
    assert [(topics[row["topic"]], row["partition"]) for row in rows] == [(views, 5), (views, 3), (views, 5)]
    assert [(topics[row["topic"]], row["partition"]) for row in positions] == [(clicks, 0), (views, 3)]


def test_nothing_has_no_topics() -> None:
    assert name_partitions({}, np.zeros(0, ROW), np.zeros(0, POSITION)) == ()
