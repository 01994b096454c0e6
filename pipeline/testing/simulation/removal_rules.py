"""The removal of logs, as disks see it.

Rule: a log is removed only if somebody asked for the deletion of its topic, or if its partition was moved and the
broker is not in the ISR. Whatever ZooKeeper lacks is no reason. A broker that is assigned the partition once more
begins with an empty log: were it in the ISR, it could lead with that.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.log.files import DiskFiles
from pipeline.model import BrokerId, TopicPartition

REMOVED = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\.[0-9a-f]{32}-delete")


class WatchedFiles(DiskFiles):
    """The files of a machine. `removed` is called when a log gets the name of what is to be removed."""

    def __init__(self, removed: Callable[[TopicPartition], None]) -> None:
        self._removed = removed

    def rename(self, source: Path, target: Path) -> None:
        match = REMOVED.fullmatch(target.name)
        if match is not None:
            self._removed(TopicPartition(match["topic"], int(match["partition"])))
        super().rename(source, target)


@dataclass(eq=False)
class RemovalRules:
    """Judges; `problems` are sentences."""

    problems: list[str] = field(default_factory=list)
    deleted: dict[str, None] = field(default_factory=dict)
    """Topics of which somebody asked for the deletion."""
    moved: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions of which somebody asked for other replicas."""

    def removed(self, broker: BrokerId, topic_partition: TopicPartition, isr: Collection[int] | None) -> None:
        """A broker removes a log; ZooKeeper has this ISR, None if it knows no such partition."""
        is_moved_away = topic_partition in self.moved and isr is not None and broker not in isr
        if topic_partition.topic not in self.deleted and not is_moved_away:
            self.problems.append(f"broker {broker} removes its log of {topic_partition}, as nobody asked it to")
