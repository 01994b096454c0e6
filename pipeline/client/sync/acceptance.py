"""The way of records from the handover into the producer, on the core thread.

Records of known topics are accepted one after the other. A topic that the cluster does not show has a queue of its own
until it does: a mistyped name, or a topic that is created later, holds up no other topic.

Invariants:
- Records of a topic are accepted in the order of the handover: while its queue exists, all of them go there.
- A record waits for its topic for at most `max_block_s`, however many wait before it.
- Each record is answered: accepted, or refused with the reason.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.producer.delivery import PartlyAcceptedError
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.client.sync.deliveries import Sent, SentRecord, SentRecords
from pipeline.client.sync.handover import Handover
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.signals import Signal
from pipeline.protocol.errors import KafkaError

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SyncCore:
    """Cluster and producer of the core thread."""

    cluster: Cluster
    producer: Producer


class RecordAcceptance:
    """Used on the core thread, and by others after its end."""

    def __init__(self, handover: Handover[Sent], max_block_s: float, max_kept_bytes: int) -> None:
        self._handover = handover
        self._max_block_s = max_block_s
        self._max_kept_bytes = max_kept_bytes
        self._progress = Signal()
        self._taken: deque[Sent] = deque()
        self._queues: dict[str, deque[tuple[Sent, float]]] = {}
        """Records of topics that are waited for, each with the time (trio's clock) until which it waits."""
        self._known: set[str] = set()
        """Topics of the view whose records are accepted at once."""
        self._view: ClusterMetadata | None = None
        self._refused: deque[Sent] = deque()
        self._refused_bytes = 0
        self._first_refusal: Exception | None = None

    async def take_on(self, core: SyncCore, nursery: trio.Nursery) -> None:
        """Have the producer accept what was handed over. The tasks of topics that are waited for go on afterwards."""
        while items := self._handover.take():
            if self._view is not core.cluster.view:
                self._view = core.cluster.view
                self._known.clear()
            self._taken.extend(items)
            accepted_bytes = 0
            while self._taken:
                sent = self._taken[0]
                if not isinstance(sent.topic, str) or sent.topic in self._known:
                    await self._begin(sent, core.producer)
                    accepted_bytes += sent.size_bytes
                else:
                    self._put_into_queue(sent, core, nursery)
                self._taken.popleft()
            self._handover.done(accepted_bytes)
            self._progress.notify()

    async def answered(self, deadline: float, topic: str | None = None) -> None:
        """Wait until all records that were handed over so far are answered, of one topic or of all."""
        with trio.move_on_at(deadline):
            for sent in self.unanswered(topic):
                await self._answer(sent)

    def unanswered(self, topic: str | None = None) -> list[Sent]:
        """Return the records that are neither accepted nor refused. Those of a topic are in order."""
        queued = [sent for queue in self._queues.values() for sent, _ in queue]
        found = [sent for sent in (*queued, *self._taken, *self._handover.waiting()) if not sent.is_answered]
        return [sent for sent in found if topic is None or sent.topic == topic]

    async def outcome(self, sent: Sent) -> None:
        """Wait until `sent.done()`."""
        await self._answer(sent)
        if sent.error is None and sent.accepted is not None:
            with suppress(PipelineError):
                await sent.accepted.wait()

    def refuse_all(self, error: Exception) -> None:
        """Refuse what is not answered."""
        for sent in self.unanswered():
            self._refuse(sent, error)

    def take_refused(self) -> list[UndeliveredRecord]:
        """Return the records that the producer did not accept and that were not returned before.

        At most `max_kept_bytes` of them are kept, the newest.
        """
        refused, self._refused, self._refused_bytes = self._refused, deque(), 0
        return [record for sent in refused for record in sent.undelivered()]

    def take_first_refusal(self) -> Exception | None:
        """Return why the first record since the last call was not accepted."""
        first, self._first_refusal = self._first_refusal, None
        return first

    def _put_into_queue(self, sent: Sent, core: SyncCore, nursery: trio.Nursery) -> None:
        queue = self._queues.get(sent.topic)
        if queue is None:
            queue = self._queues[sent.topic] = deque()
            nursery.start_soon(self._serve_queue, sent.topic, queue, core)
        queue.append((sent, trio.current_time() + self._max_block_s))

    async def _serve_queue(self, topic: str, queue: deque[tuple[Sent, float]], core: SyncCore) -> None:
        """Accept the records of a topic once it is known, or refuse them, until the queue is empty."""
        error: Exception | None = None
        while queue:
            sent, deadline = queue[0]
            left_s = deadline - trio.current_time()
            if error is None or left_s > 0:
                reason = await _why_unknown(core.cluster, topic, left_s)
                if reason is None or isinstance(reason, KafkaError) or not isinstance(error, KafkaError):
                    error = reason  # the answer of a broker says more than no answer in the last moment
            if error is None:
                await self._begin(sent, core.producer)
            else:
                self._refuse(sent, error)
            queue.popleft()
            self._handover.done(sent.size_bytes)
            self._progress.notify()
        del self._queues[topic]
        if error is None:
            self._known.add(topic)

    async def _begin(self, sent: Sent, producer: Producer) -> None:
        try:
            sent.accepted = await sent.begin(producer)
            sent.asked = None
        except Exception as error:
            self._refuse(sent, error)

    def _refuse(self, sent: Sent, error: Exception) -> None:
        if isinstance(error, PartlyAcceptedError) and isinstance(sent, SentRecords):
            sent.accepted = error.accepted
        sent.error = error
        self._first_refusal = self._first_refusal or error
        self._refused.append(sent)
        self._refused_bytes += sent.size_bytes
        while self._refused_bytes > self._max_kept_bytes and len(self._refused) > 1:
            self._refused_bytes -= self._refused.popleft().size_bytes
        callback = sent.asked[-1] if isinstance(sent, SentRecord) and sent.asked else None
        if callback is not None:
            try:
                callback(None, error)
            except Exception:
                logger.exception("delivery_callback_failed")

    async def _answer(self, sent: Sent) -> None:
        while not sent.is_answered:
            await self._progress.wait()


async def _why_unknown(cluster: Cluster, topic: str, timeout_s: float) -> Exception | None:
    """Wait until the cluster shows a topic. Return the reason if it does not."""
    try:
        await cluster.topic(topic, timeout_s=max(0.0, timeout_s))
    except Exception as error:
        return error
    return None
