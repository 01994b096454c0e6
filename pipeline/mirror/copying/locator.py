"""Locates partitions: asks the destination where each replica ends, and has it fetched from there."""

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.consumer import Consumer
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import Advice, PartitionCopy, SourceCopies
from pipeline.mirror.copying.destination import Destination, ReplicaHaltedError, is_fenced
from pipeline.mirror.copying.gap_policy import Continuation, GapCrossing, HaltedError
from pipeline.model import BrokerId
from pipeline.net.nurseries import unwrapped_errors

MAX_LOCATING = 20

logger = get_logger(__name__)


class Locator:
    """Finds the position of each partition of one source that is not certain."""

    def __init__(
        self, copies: SourceCopies, crossing: GapCrossing, destination: Cluster, replicas: Destination
    ) -> None:
        self._copies = copies
        self._crossing = crossing
        self._destination = destination
        self._replicas = replicas
        self._locating: dict[BrokerId | None, trio.CapacityLimiter] = {}
        """Limiters by destination leader, so that a leader that is away does not delay partitions of the others."""

    async def run(self, consumer: Consumer) -> None:
        """Locate every partition whose position is not certain, each in a task of its own, until cancelled."""
        uncertain = self._copies.uncertain
        async with trio.open_nursery() as nursery:
            while True:
                uncertain.clear()
                waiting = [
                    copy
                    for copy in self._copies.states.values()
                    if copy.position is None and not (copy.is_rejected or copy.is_being_located or copy.is_appending)
                ]
                for copy in waiting:
                    if copy.retry_at <= trio.current_time():
                        copy.is_being_located = True
                        nursery.start_soon(self._locate, consumer, copy)
                retries = [copy.retry_at for copy in waiting if not copy.is_being_located]
                with trio.move_on_at(min(retries, default=float("inf"))):
                    await uncertain.wait()

    async def _locate(self, consumer: Consumer, copy: PartitionCopy) -> None:
        """Ask where the replica stands and fetch from there; a paused partition is not fetched, and crosses no gap."""
        is_paused = copy.pause is not None
        try:
            leader = self._destination.view.leader_of(copy.assignment.replica)
            with unwrapped_errors():
                async with self._locating.setdefault(leader, trio.CapacityLimiter(MAX_LOCATING)):
                    standing = await self._replicas.locate(copy)
                place = Continuation(offset=standing.source_offset)
                if not is_paused:
                    place = await self._crossing.place_of(copy, standing.source_offset)
        except HaltedError as halted:
            self._stop_fetching(consumer, copy)
            self._copies.halt(copy, halted.gap, str(halted))
        except ReplicaHaltedError as error:
            self._stop_fetching(consumer, copy)
            self._copies.rest(copy, str(error), Advice.MEND_REPLICA)
        except PipelineError as error:
            self._stop_fetching(consumer, copy)
            self._copies.rest(copy, str(error), Advice.JOIN_GROUP if is_fenced(error) else Advice.LOOK_AT_BOTH)
        else:
            if copy.is_rejected or is_paused != (copy.pause is not None):
                pass  # a partition that was paused or resumed meanwhile is located again
            elif is_paused:
                copy.replica_end, copy.position, copy.leader_epoch = standing.replica_end, place.offset, None
                copy.progress.note_position(place.offset)
            else:
                copy.replica_end, copy.position, copy.fetch = standing.replica_end, place.offset, copy.fetch + 1
                copy.leader_epoch = place.leader_epoch
                copy.is_out_of_range, copy.is_truncated, copy.straddling_end, copy.halt = False, False, None, None
                copy.progress.note_position(place.offset)
                topic_id = copy.assignment.source.topic_id
                consumer.add(copy.source, place.offset, topic_id, leader_epoch=place.leader_epoch)
                if copy.trouble is not None or copy.progress.answered_at is None:
                    names = {"partition": str(copy.source), "replica": str(copy.assignment.replica)}
                    logger.info("copying", source=self._copies.source, **names, offset=place.offset)
        finally:
            copy.is_being_located = False
            self._copies.uncertain.set()

    def _stop_fetching(self, consumer: Consumer, copy: PartitionCopy) -> None:
        if self._copies.is_current(copy):  # a newer state may be fetched already
            consumer.remove(copy.source)
