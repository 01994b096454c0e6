"""The hub as all sources of a mirror share it: the destination, its journals and replicas, and the known sources."""

from collections.abc import Callable, Mapping
from random import Random

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.appending.appended_offsets import AppendedOffsets
from pipeline.mirror.config import DestinationMode, MirrorConfig
from pipeline.mirror.copying.copy_observer import CopyObserver
from pipeline.mirror.copying.destination import Destination
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.copying.recompression import RecompressingDestination
from pipeline.mirror.copying.throttles import Throttles
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.groups.offset_journal import GroupOffsetJournal
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.journal_topic import create_journals
from pipeline.mirror.journals.offset_map_journal import OffsetMapJournal
from pipeline.mirror.journals.pause_journal import PauseJournal
from pipeline.mirror.journals.selection_journal import SelectionJournal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.sharing.share import ALONE
from pipeline.mirror.topics.flows import SourceFlows, mirror_name_of, selection_in
from pipeline.mirror.topics.known_sources import KnownSource, KnownSources
from pipeline.mirror.topics.replica_topics import ReplicaTopics
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.model import Clock
from pipeline.net.signals import Wakeup


class Hub:
    """The destination of a mirror, with its journals, its replica topics, and the sources that feed them."""

    def __init__(
        self,
        config: CurrentConfig,
        destination: Cluster,
        *,
        clock: Clock,
        rng: Random,
        metrics: MirrorMetrics,
        observer: CopyObserver,
    ) -> None:
        self.observer = observer
        self.config = config
        self.cluster = destination
        self.clock = clock
        self.rng = rng
        self.metrics = metrics
        self.throttles = Throttles(config.now)
        self.journal = TableJournal(destination, metrics.count_skipped_table_records)
        self.gaps = GapJournal(destination, clock=clock, rng=rng)
        self.epochs = EpochJournal(destination, clock=clock, rng=rng)
        self.pauses = PauseJournal(destination, clock=clock, rng=rng)
        self.selections = SelectionJournal(destination, clock=clock, rng=rng)
        self.group_offsets = GroupOffsetJournal(destination, clock=clock, rng=rng)
        self.selected = SelectedTopics(self.journal.table)
        self.destination: Destination = RecompressingDestination(
            KeptOffsets(destination, config)
            if config.now.destination_mode is DestinationMode.EXACT
            else AppendedOffsets(destination, OffsetMapJournal(destination, config, clock=clock), config),
            self.selected.compression_of,
            metrics,
        )
        self.replicas = ReplicaTopics(destination, self.journal.table, config)
        self.sources = KnownSources(destination, self.journal.table, self.selected, config)
        self.turn = trio.Lock()
        """Held while a source's partitions are entered in the table and taken in."""
        self.share = ALONE
        """The work that this process does."""
        self.has_duties_of: Callable[[str], bool] = lambda _source: True
        """Returns False while another process does the work of a source beside its partitions."""
        self.work_changed = Wakeup()
        """Set when the table has more partitions, or other ones of them are selected."""
        self._known_count = 0
        self._not_asked: set[str] | None = None
        self._all_asked = trio.Event()

    async def open(self, *, timeout_s: float) -> None:
        """Read all journals, and record the selection; `timeout_s` bounds the first contact. Raises PipelineError."""
        await self.cluster.refresh(timeout_s=timeout_s)
        journals = (self.journal, self.gaps, self.epochs, self.pauses, self.selections)
        await create_journals(self.cluster, [journal.topic for journal in journals])
        async with trio.open_nursery() as nursery:
            for opened in (*journals, self.destination):
                nursery.start_soon(opened.open)
        recorded = None
        while recorded is not self.config.now:  # settings that come meanwhile are recorded as well
            recorded = self.config.now
            await self.record_selection(recorded)

    async def record_selection(self, config: MirrorConfig) -> None:
        """Record what these settings select, durably. Raises PipelineError; it may be recorded in part then."""
        await self.selections.record(mirror_name_of(config), selection_in(config))

    def set_sources(self, sources: Mapping[str, KnownSource], flows: Mapping[str, SourceFlows]) -> None:
        """Have these sources and flows from now on, in the order of the settings."""
        self.sources.set_sources(sources)
        self.selected.set_flows(flows)
        self.work_changed.set()
        self._not_asked = set(sources) if self._not_asked is None else self._not_asked & sources.keys()
        self._wake_if_asked()

    def note_asked(self, name: str) -> None:
        """Take note that a source has answered, or failed to."""
        if self._not_asked is not None:
            self._not_asked.discard(name)
        self._wake_if_asked()

    def note_table(self) -> None:
        """Take note that the table may have more partitions."""
        count = self.journal.table.size
        if count != self._known_count:
            self._known_count = count
            self.work_changed.set()

    async def wait_for_all_asked(self) -> None:
        """Wait until each first source has answered or failed: replicas created from then on name all their sources."""
        await self._all_asked.wait()

    def _wake_if_asked(self) -> None:
        if not self._not_asked:
            self._all_asked.set()
