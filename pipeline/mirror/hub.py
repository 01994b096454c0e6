"""The hub as all sources of a mirror share it: the destination, its journals and replicas, and the known sources."""

from collections.abc import Mapping
from random import Random

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.destination import Destination
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.mirror.topics.known_sources import KnownSources
from pipeline.mirror.topics.replica_topics import ReplicaTopics
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.model import Clock


class Hub:
    """The destination of a mirror, with its journals, its replica topics, and the sources that feed them."""

    def __init__(
        self,
        config: MirrorConfig,
        flows: Mapping[str, SourceFlows],
        destination: Cluster,
        *,
        clock: Clock,
        rng: Random,
        metrics: MirrorMetrics,
    ) -> None:
        self.cluster = destination
        self.clock = clock
        self.rng = rng
        self.metrics = metrics
        self.journal = TableJournal(destination, metrics.count_skipped_table_records)
        self.gaps = GapJournal(destination, clock=clock, rng=rng)
        self.epochs = EpochJournal(destination, clock=clock, rng=rng)
        timeout_s = config.produce_timeout_ms / 1000
        self.destination: Destination = KeptOffsets(destination, timeout_s=timeout_s)
        self.replicas = ReplicaTopics(destination, self.journal.table, config.topic_settings, timeout_s=timeout_s)
        self.selected = SelectedTopics(flows, self.journal.table)
        self.sources = KnownSources(destination, self.journal.table, self.selected, config.topic_settings)
        self.turn = trio.Lock()
        """Held while a source's partitions are entered in the table and taken in."""
        self._not_asked: set[str] = set()
        self._all_asked = trio.Event()

    async def open(self, *, timeout_s: float) -> None:
        """Read all journals; `timeout_s` bounds the first contact. Raises PipelineError."""
        await self.cluster.refresh(timeout_s=timeout_s)
        async with trio.open_nursery() as nursery:
            for journal in (self.journal, self.gaps, self.epochs):
                nursery.start_soon(journal.open)

    def add_source(self, name: str, source: Cluster) -> None:
        """Add a source that has not answered yet."""
        self.sources.add(name, source)
        self._not_asked.add(name)

    def note_asked(self, name: str) -> None:
        """Take note that a source has answered, or failed to."""
        self._not_asked.discard(name)
        if not self._not_asked:
            self._all_asked.set()

    async def wait_for_all_asked(self) -> None:
        """Wait until each source has answered or failed: replicas created from then on name all their sources."""
        await self._all_asked.wait()
