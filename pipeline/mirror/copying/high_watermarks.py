"""High watermarks of the source: of Fetch answers, and of partitions that no Fetch answer names.

The consumer fetches no more than its buffer holds, so a hub that takes nothing ends the Fetch requests too. Without
other requests a lag would be outdated just when it grows.

Invariants:
A. A high watermark of a Fetch answer counts if its leader has answered ListOffsets in its leader epoch before. A new
   leader's Fetch answers may name an older high watermark than its predecessor's, for as long as one of its followers
   is away. ListOffsets waits until the leader knows all that was committed (KIP-207).
B. A leader that lost records before the replica's end has others there, so that its high watermark is no measure of
   the lag. A new leader's counts once the leader has confirmed its log up to the position (KIP-320). A Fetch request
   under way may learn of the new leader much later.
"""

from collections.abc import Mapping, Sequence

import trio

from pipeline.client.admin.leader_epochs import EpochEnd, ask_ends_once
from pipeline.client.admin.offsets import list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import SILENCE_S, KnownEnd, PartitionCopy, SourceCopies, SourceLeader
from pipeline.mirror.current_config import CurrentConfig
from pipeline.model import MAX_INT64, BrokerId, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.schema import ZERO_UUID

ROUND_S = 1.0
"""Time between two searches for outdated high watermarks. They cost some ms for 10,000 partitions."""
DUE_S = 2.0
"""Time beyond `fetch.max.wait.ms` after which a leader is asked: a Fetch answer would have come by then, also if the
partition is one of 10,000 idle ones, whose requests wait longer (`fetch_queue.py`)."""
PAUSE_S = 0.1
"""Time between two rounds while a new leader does not know its high watermark yet."""
LANE = "high watermarks"

logger = get_logger(__name__)


class HighWatermarks:
    """Asks the leaders of one source for high watermarks that are about to be outdated, in one request for each."""

    def __init__(self, copies: SourceCopies, source: Cluster, config: CurrentConfig) -> None:
        self._copies = copies
        self._source = source
        self._config = config
        self._asked: set[BrokerId] = set()
        """Leaders that have not answered yet."""
        self._has_new_leaders = Wakeup()
        self._view = source.view
        self._leaders: dict[TopicPartition, SourceLeader] = {}
        """Leaders in this view, as far as they were looked up."""

    def note_fetched(self, answers: Sequence[tuple[TopicPartition, int]], asked_at: float) -> None:
        """Take note of the high watermarks in the answer to a Fetch request of `asked_at` (invariant A)."""
        copies = self._copies
        for topic_partition, high_watermark in answers:
            copy = copies.states.get(topic_partition)
            known = None if copy is None else copy.known_end
            if known is None or known.leader != self._leader_of(topic_partition):
                self._has_new_leaders.set()
            else:  # an answer of before may have come late
                copies.note_answer(topic_partition, max(high_watermark, known.high_watermark), asked_at)
        copies.answered_at = trio.current_time()

    def _leader_of(self, topic_partition: TopicPartition) -> SourceLeader:
        view = self._source.view
        if view is not self._view:
            self._view, self._leaders = view, {}
        found = self._leaders.get(topic_partition)
        if found is None:
            found = SourceLeader(view.leader_of(topic_partition), view.leader_epoch_of(topic_partition))
            self._leaders[topic_partition] = found
        return found

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
            confirmed = await self._confirm(leader, leaders)
            wanted = {name: position for name, position in positions.items() if name in confirmed}
            found = await list_offsets_at(self._source, leader, wanted, timeout_s=SILENCE_S, lane=LANE)
        except PipelineError as error:
            logger.info("high_watermarks_not_known", source=self._copies.source, broker=leader, error=str(error))
        else:
            self._copies.answered_at = trio.current_time()
            for topic_partition, listed in found.items():
                copy = self._copies.states.get(topic_partition)
                if copy is not None and confirmed[topic_partition]:
                    copy.known_end = KnownEnd(leaders[topic_partition], listed.offset)
                self._copies.note_answer(topic_partition, listed.offset, asked_at)
        finally:
            self._asked.discard(leader)

    async def _confirm(
        self, leader: BrokerId, leaders: Mapping[TopicPartition, SourceLeader]
    ) -> dict[TopicPartition, bool]:
        """Return the partitions whose high watermarks may count: True if the position is valid in the leader's log.

        A partition that is not located has no position to confirm, and no lag of 0. One whose records the leader lost
        is left out, and located again. Raises as `Cluster.request`.
        """
        confirmed: dict[TopicPartition, bool] = {}
        asked: dict[TopicPartition, tuple[PartitionCopy, int]] = {}
        epochs: dict[TopicPartition, int] = {}
        for name, found in leaders.items():
            copy = self._copies.states.get(name)
            if copy is None:
                continue
            is_known = copy.known_end is not None and copy.known_end.leader == found
            if is_known or copy.position is None or copy.leader_epoch is None:
                confirmed[name] = is_known or copy.position is not None
            else:
                asked[name], epochs[name] = (copy, copy.position), copy.leader_epoch
        for name, (code, end) in (await self._ends_of(leader, epochs)).items():
            copy, position = asked[name]
            if code == ErrorCode.NONE and end.end_offset >= position:
                confirmed[name] = True
            elif code == ErrorCode.NONE and copy.position == position:
                copy.is_truncated = True
                self._copies.locate_again(copy)
        return confirmed

    async def _ends_of(
        self, leader: BrokerId, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, tuple[int, EpochEnd]]:
        """Return where epochs end in the log of a leader. One that is too old to tell has all there is."""
        if not epochs:
            return {}
        try:
            answers = await ask_ends_once(
                self._source, self._source.view, leader, epochs, timeout_s=SILENCE_S, lane=LANE
            )
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return {
                name: (ErrorCode.NONE, EpochEnd(leader_epoch=epoch, end_offset=MAX_INT64))
                for name, epoch in epochs.items()
            }
        return {name: answers[name] for name in epochs if name in answers}
