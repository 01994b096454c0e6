"""The journal of a groups' partition on a real disk."""

import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC, GroupJournal
from pipeline.broker.groups.model import LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import journal_records
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import TopicSettings, topic_settings
from pipeline.errors import StorageError
from pipeline.log.config import DAY_MS
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.faulty_files import FaultyFiles

NOW_MS = 1_700_000_000_000
NAME = TopicPartition(GROUP_METADATA_TOPIC, 0)
TOPIC_ID = uuid.UUID(int=7)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
TIMEOUT_MS = 5000
MAX_STEP_S = 0.2


def committed(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=Offset(offset), commit_timestamp_ms=NOW_MS)


def one(offset: int, group_id: str = "g", name: TopicPartition = A) -> list[tuple[bytes, bytes | None]]:
    return journal_records(group_id, {name: committed(offset)})


@dataclass
class Heard:
    """A listener that remembers."""

    loaded: list[tuple[int, Mapping[str, LoadedGroup]]] = field(default_factory=list)
    unloaded: list[int] = field(default_factory=list)

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        self.loaded.append((partition, groups))

    def on_unloaded(self, partition: int) -> None:
        self.unloaded.append(partition)


@dataclass
class Rig:
    """One partition of the journal and its disk; `partition` is this broker's replica."""

    journal: GroupJournal
    directories: LogDirectories
    disk: FaultyFiles
    heard: Heard
    settings: TopicSettings
    view: ClusterView
    partition: Any = None

    async def open(self, epoch: int = 0, isr: tuple[int, ...] = (1,)) -> None:
        """Lead it, together with the others of the ISR."""
        if self.partition is None:
            log = self.directories.get(NAME) or self.directories.create(
                NAME, is_new=True, now_ms=NOW_MS, topic_id=TOPIC_ID, config=log_config(self.settings, DAY_MS)
            )
            upkeep: Any = SimpleNamespace(
                disks=DiskThreads(), flush_soon=lambda _: None, in_sync=InSyncWatch(self.view, 10.0)
            )
            self.partition = Partition(log, self.settings, NoObserver(), upkeep, BrokerId(1))
        brokers = tuple(BrokerId(number) for number in isr)
        self.view.set_brokers({own: BrokerEndpoint(id=own, address=HostPort("h", 9092)) for own in brokers})
        self.partition.lead(
            PartitionView(replicas=brokers, leader=BrokerId(1), leader_epoch=LeaderEpoch(epoch), isr=brokers)
        )
        self.journal.leadership_began(self.partition)

    def close(self) -> None:
        """Lead it no more."""
        self.partition.resign()
        self.journal.leadership_ended(NAME)

    def follower_has(self, end_offset: int | None = None) -> None:
        """Broker 2 has all before there, or all there is."""
        end_offset = self.partition.log.log_end_offset if end_offset is None else end_offset
        leadership = self.partition.leading()
        leadership.follower_fetched(BrokerId(2), Offset(end_offset), Offset(0), broker_epoch=-1, has_epoch=True)

    async def loaded(self, known: int) -> Mapping[str, LoadedGroup]:
        """What is loaded after so many loads."""
        with trio.fail_after(60):
            while len(self.heard.loaded) == known:
                await trio.lowlevel.checkpoint()
        return self.heard.loaded[-1][1]

    async def reopen(self) -> Mapping[str, LoadedGroup]:
        """What is loaded when the partition is led anew."""
        known = len(self.heard.loaded)
        self.close()
        await self.open(self.partition.leader_epoch + 1)
        return await self.loaded(known)

    @property
    def batches(self) -> int:
        return sum(1 for _ in self.partition.log.headers(self.partition.log.log_start_offset))

    def code(self, group_id: str = "g") -> ErrorCode:
        try:
            self.journal.check(group_id)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


@asynccontextmanager
async def running(path: Path, **settings: str) -> AsyncIterator[Rig]:
    disk = FaultyFiles(DiskFiles(), random.Random(1))
    config = BrokerConfig.from_settings(
        {"broker.id": 1, "log.dirs": str(path), "zookeeper.connect": "memory:0", "listeners": "PLAINTEXT://127.0.0.1:0"}
    )
    chosen = topic_settings({key.replace("_", "."): value for key, value in settings.items()}, config)
    view = ClusterView("cluster")
    view.set_topic(
        TopicView(
            name=GROUP_METADATA_TOPIC,
            topic_id=TOPIC_ID,
            partitions={0: PartitionView(replicas=(BrokerId(1),))},
            settings=chosen,
        )
    )
    directories = LogDirectories.open(
        config.log_dirs,
        disk,
        log_config(chosen, DAY_MS),
        broker_id=BrokerId(1),
        cluster_id="cluster",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )
    journal, heard = GroupJournal(view, lambda: NOW_MS, partitions=50, timeout_ms=TIMEOUT_MS), Heard()
    journal.subscribe(heard)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        yield Rig(journal, directories, disk, heard, chosen, view)
        nursery.cancel_scope.cancel()
    with suppress(StorageError):
        directories.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()
