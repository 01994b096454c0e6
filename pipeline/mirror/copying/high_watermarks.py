"""High watermarks of the source: of Fetch answers, and of partitions that no Fetch answer names.

The consumer fetches no more than its buffer holds, so a hub that takes nothing ends the Fetch requests too. Without
other requests a lag would be outdated just when it grows.

Invariant: a high watermark counts if its leader has answered ListOffsets in its leader epoch before. A new leader's
Fetch answers may name an older high watermark than its predecessor's, for as long as one of its followers is away.
ListOffsets waits until the leader knows all that was committed (KIP-207).
"""

import structlog
import trio

from pipeline.client.admin.offsets import list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import SILENCE_S, KnownEnd, SourceCopies, SourceLeader
from pipeline.mirror.current_config import CurrentConfig
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.schema import ZERO_UUID

ROUND_S = 1.0
"""Time between two searches for outdated high watermarks. They cost some ms for 10,000 partitions."""
DUE_S = 1.0
"""Time beyond `fetch.max.wait.ms` after which a leader is asked: a Fetch answer would have come by then."""
PAUSE_S = 0.1
"""Time between two rounds while a new leader does not know its high watermark yet."""
LANE = "high watermarks"

logger = structlog.get_logger()


class HighWatermarks:
    """Asks the leaders of one source for high watermarks that are about to be outdated, in one request for each."""

    def __init__(self, copies: SourceCopies, source: Cluster, config: CurrentConfig) -> None:
        self._copies = copies
        self._source = source
        self._config = config
        self._asked: set[BrokerId] = set()
        """Leaders that have not answered yet."""
        self._has_new_leaders = Wakeup()

    def note_fetched(self, topic_partition: TopicPartition, high_watermark: int, asked_at: float) -> None:
        """Take note of the high watermark in the answer to a Fetch request of `asked_at`; see the invariant."""
        copy = self._copies.states.get(topic_partition)
        if copy is None or copy.known_end is None or copy.known_end.leader != self._leader_of(topic_partition):
            self._copies.answered_at = trio.current_time()
            self._has_new_leaders.set()
        else:  # an answer of before may have come late
            self._copies.note_answer(topic_partition, max(high_watermark, copy.known_end.high_watermark), asked_at)

    def _leader_of(self, topic_partition: TopicPartition) -> SourceLeader:
        view = self._source.view
        return SourceLeader(view.leader_of(topic_partition), view.leader_epoch_of(topic_partition))

    async def run(self) -> None:
        """Ask regularly until cancelled, and new leaders soon."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(PAUSE_S)
                with trio.move_on_after(ROUND_S - PAUSE_S):
                    await self._has_new_leaders.wait_and_clear()
                for leader, positions in self._due(trio.current_time()).items():
                    self._asked.add(leader)
                    nursery.start_soon(self._ask, leader, positions)

    def _due(self, now: float) -> dict[BrokerId, dict[TopicPartition, int]]:
        """Return the partitions to ask for, by leader. Partitions without leader stay without answer."""
        due: dict[BrokerId, dict[TopicPartition, int]] = {}
        view, due_s = self._source.view, self._config.fetch_wait_s + DUE_S
        for topic_partition, copy in self._copies.states.items():
            progress = copy.progress
            if copy.is_rejected or progress.position is None:
                continue
            is_new = copy.known_end is None or copy.known_end.leader != self._leader_of(topic_partition)
            if not is_new and progress.is_fresh(now, due_s):
                continue
            leader = view.leader_of(topic_partition)
            if leader is None or leader in self._asked:
                continue
            # The high watermark of a recreated topic says nothing about the replica.
            expected, present = copy.assignment.source.topic_id, view.topics[topic_partition.topic].id
            if expected == present or ZERO_UUID in (expected, present):
                due.setdefault(leader, {})[topic_partition] = LATEST
        return due

    async def _ask(self, leader: BrokerId, positions: dict[TopicPartition, int]) -> None:
        asked_at, leaders = trio.current_time(), {name: self._leader_of(name) for name in positions}
        try:
            found = await list_offsets_at(self._source, leader, positions, timeout_s=SILENCE_S, lane=LANE)
        except PipelineError as error:
            logger.info("high_watermarks_not_known", source=self._copies.source, broker=leader, error=str(error))
        else:
            for topic_partition, listed in found.items():
                copy = self._copies.states.get(topic_partition)
                if copy is not None:
                    copy.known_end = KnownEnd(leaders[topic_partition], listed.offset)
                self._copies.note_answer(topic_partition, listed.offset, asked_at)
        finally:
            self._asked.discard(leader)
