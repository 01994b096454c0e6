"""Log end offsets of replicas that have caught up: asked for regularly, as no append would notice lost records.

A replica can be deleted, recreated, or lose its end while its source has no new records. Without other requests its lag
would stay 0.
"""

import trio

from pipeline.client.admin.offsets import list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import PartitionCopy, SourceCopies
from pipeline.mirror.current_config import CurrentConfig
from pipeline.model import BrokerId
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.messages.list_offsets import LATEST

ROUND_S = 5.0
"""Time between two rounds: a lag of 0 is wrong no longer than a high watermark may be outdated."""
LANE = "replica ends"

logger = get_logger(__name__)


class ReplicaEnds:
    """Has replicas of one source located again whose destination does not confirm their position."""

    def __init__(self, copies: SourceCopies, destination: Cluster, config: CurrentConfig) -> None:
        self._copies = copies
        self._destination = destination
        self._config = config
        self._asked: set[BrokerId] = set()
        """Leaders that have not answered yet."""

    async def run(self) -> None:
        """Ask regularly until cancelled, each leader in one request."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(ROUND_S)
                for leader, positions in self._caught_up().items():
                    if leader is None:
                        self._locate_unconfirmed(positions, {})
                    elif leader not in self._asked:
                        self._asked.add(leader)
                        nursery.start_soon(self._ask, leader, positions)

    def _caught_up(self) -> dict[BrokerId | None, list[tuple[PartitionCopy, int]]]:
        """Return the copies without lag and their positions, by leader of the replica."""
        found: dict[BrokerId | None, list[tuple[PartitionCopy, int]]] = {}
        for copy in self._copies.states.values():
            # A replica whose records are all behind a gap has an end before its position.
            if copy.position is not None and copy.position == copy.progress.high_watermark and not copy.is_rejected:
                leader = self._destination.view.leader_of(copy.assignment.replica)
                found.setdefault(leader, []).append((copy, copy.position))
        return found

    async def _ask(self, leader: BrokerId, positions: list[tuple[PartitionCopy, int]]) -> None:
        wanted = {copy.assignment.replica: LATEST for copy, _ in positions}
        ends: dict[object, int] = {}
        try:
            with unwrapped_errors():
                listed = await list_offsets_at(
                    self._destination, leader, wanted, timeout_s=self._config.timeout_s, lane=LANE
                )
                ends = {replica: found.offset for replica, found in listed.items()}
        except PipelineError as error:
            logger.info("replica_ends_not_known", source=self._copies.source, broker=leader, error=str(error))
        finally:
            self._asked.discard(leader)
        self._locate_unconfirmed(positions, ends)

    def _locate_unconfirmed(self, positions: list[tuple[PartitionCopy, int]], ends: dict[object, int]) -> None:
        for copy, position in positions:
            # An append meanwhile has moved the position, and a later end is that of an append under way.
            if copy.position == position and ends.get(copy.assignment.replica, -1) < copy.replica_end:
                self._copies.locate_again(copy)
