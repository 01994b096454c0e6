"""High watermarks of partitions that no Fetch answer names: those that rest, and all while the hub is slow or down.

The consumer fetches no more than its buffer holds, so a hub that takes nothing ends the Fetch requests too. Without
other requests a lag would be outdated just when it grows.
"""

import structlog
import trio

from pipeline.client.admin.offsets import list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import SILENCE_S, SourceCopies
from pipeline.mirror.current_config import CurrentConfig
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.schema import ZERO_UUID

ROUND_S = 1.0
"""Time between two searches for outdated high watermarks. They cost some ms for 10,000 partitions."""
DUE_S = 1.0
"""Time beyond `fetch.max.wait.ms` after which a leader is asked: a Fetch answer would have come by then."""
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

    async def run(self) -> None:
        """Ask regularly until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(ROUND_S)
                for leader, positions in self._due(trio.current_time()).items():
                    self._asked.add(leader)
                    nursery.start_soon(self._ask, leader, positions)

    def _due(self, now: float) -> dict[BrokerId, dict[TopicPartition, int]]:
        """Return the partitions to ask for, by leader. Partitions without leader stay without answer."""
        due: dict[BrokerId, dict[TopicPartition, int]] = {}
        view, due_s = self._source.view, self._config.fetch_wait_s + DUE_S
        for topic_partition, copy in self._copies.states.items():
            progress = copy.progress
            if copy.is_rejected or progress.position is None or progress.is_fresh(now, due_s):
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
        asked_at = trio.current_time()
        try:
            found = await list_offsets_at(self._source, leader, positions, timeout_s=SILENCE_S, lane=LANE)
        except PipelineError as error:
            logger.info("high_watermarks_not_known", source=self._copies.source, broker=leader, error=str(error))
        else:
            for topic_partition, listed in found.items():
                self._copies.note_answer(topic_partition, listed.offset, asked_at)
        finally:
            self._asked.discard(leader)
