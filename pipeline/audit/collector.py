"""Reading the audit topics of all clusters into one ledger, from their start, whenever the service starts."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
import trio

from pipeline.audit.ledger import Ledger
from pipeline.audit.message import AUDIT_TOPIC, AuditMessageError, decode_event
from pipeline.client.cluster import Cluster
from pipeline.client.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer import Consumer, open_consumer
from pipeline.client.fetch_plan import FetchedBatches
from pipeline.client.offsets import LATEST, list_offsets
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.records.record import iterate_records

EVENTS = TopicPartition(AUDIT_TOPIC, 0)
POLL_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 5.0

log = structlog.get_logger()


@dataclass(slots=True)
class ReadingState:
    """How far one cluster's audit topic was read. `error`: why it cannot be read at present."""

    position: int = 0
    lag: int | None = None
    error: str | None = None


class Collector:
    """Keeps the ledger up to date."""

    def __init__(self, clusters: Mapping[str, Cluster], retry_backoff_s: float) -> None:
        self.ledger = Ledger()
        self.states = {name: ReadingState() for name in clusters}
        self._clusters = clusters
        self._retry_backoff_s = retry_backoff_s

    async def run(self) -> None:
        """Read for ever. A cluster that is away does not hold up the others."""
        async with trio.open_nursery() as nursery:
            for name, cluster in self._clusters.items():
                nursery.start_soon(self._read, name, cluster)

    async def _read(self, name: str, cluster: Cluster) -> None:
        state = self.states[name]
        while True:
            try:
                await cluster.topic(AUDIT_TOPIC)
                settings = ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)
                async with open_consumer(cluster, settings) as consumer:
                    consumer.assign({EVENTS: state.position})
                    while True:
                        await self._poll(cluster, consumer, state)
            except PipelineError as error:
                state.error = str(error)
                log.info("audit_topic_not_readable", cluster=name, error=str(error))
                await trio.sleep(self._retry_backoff_s)

    async def _poll(self, cluster: Cluster, consumer: Consumer, state: ReadingState) -> None:
        for batches in await consumer.poll_batches(POLL_TIMEOUT_S):
            self._apply(batches)
            state.position = batches.next_offset
        # Asked for, as the consumer waits without a word for a broker that is away.
        listed = await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=ANSWER_TIMEOUT_S)
        state.lag = max(0, listed[EVENTS].offset - state.position)
        state.error = None

    def _apply(self, batches: FetchedBatches) -> None:
        for record in iterate_records(batches.data):
            if record.value is None or record.offset < batches.position:
                continue
            try:
                self.ledger.apply(decode_event(record.value))
            except AuditMessageError as error:
                log.warning("audit_record_skipped", offset=record.offset, error=str(error))
