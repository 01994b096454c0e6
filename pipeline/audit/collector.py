"""Reads the audit topics of all clusters into one ledger, from their beginning, whenever the service starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import trio

from pipeline.audit.message import AUDIT_TOPIC, AuditMessageError, decode_audit_event
from pipeline.audit.older_ledger import Ledger
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.opening import each_record
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.record import Record

EVENTS = TopicPartition(AUDIT_TOPIC, 0)
POLL_TIMEOUT_S = 1.0
FIRST_ANSWER_TIMEOUT_S = 2.0
"""Shorter than ANSWER_TIMEOUT_S, so that a cluster that is away at the start is soon reported."""
ANSWER_TIMEOUT_S = 5.0
NOT_READ_YET = "not read yet"

logger = get_logger(__name__)


@dataclass(slots=True)
class ReadingState:
    """Progress of reading one cluster's audit topic. `error`: why the topic cannot be read at present."""

    position: int = 0
    end: int | None = None
    """Log end offset of the topic in the last answer; None if it is not known."""
    is_complete: bool = False
    """True if all events were read that the topic held at the answer before. Newer events do not change that."""
    unreadable: int = 0
    """Number of records that are no monitoring events, or are of another version."""
    error: str | None = NOT_READ_YET

    @property
    def lag(self) -> int | None:
        """Number of events that are left to read; None if it is not known."""
        return None if self.end is None else max(0, self.end - self.position)

    @property
    def problem(self) -> str | None:
        """The reason why no hour of this cluster can be called exact; None if there is none."""
        if self.error is not None:
            return self.error
        return None if self.is_complete else f"{self.lag} events are not read yet"

    def ends_at(self, end: int) -> None:
        """Take over the log end offset that the topic answered."""
        self.is_complete = self.position >= (end if self.end is None else self.end)
        self.end = end
        self.error = None

    def fail(self, reason: str) -> None:
        """Note that the topic cannot be read."""
        self.end, self.is_complete, self.error = None, False, reason


class Collector:
    """Keeps the ledger up to date with the audit topics of all clusters."""

    def __init__(self, clusters: Mapping[str, Cluster], retry_backoff_s: float) -> None:
        self.ledger = Ledger()
        self.states = {name: ReadingState() for name in clusters}
        self._clusters = clusters
        self._retry_backoff_s = retry_backoff_s

    async def run(self) -> None:
        """Read until cancelled. A cluster that is away does not delay the others."""
        async with trio.open_nursery() as nursery:
            for name, cluster in self._clusters.items():
                nursery.start_soon(self._read, name, cluster)

    async def _read(self, name: str, cluster: Cluster) -> None:
        state = self.states[name]
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            try:
                await cluster.topic(AUDIT_TOPIC, timeout_s=timeout_s)
                settings = ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)
                async with open_consumer(cluster, settings) as consumer:
                    consumer.assign({EVENTS: state.position})
                    while True:
                        await self._poll(cluster, consumer, state)
            except PipelineError as error:
                is_unknown = isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if state.position == 0 and is_unknown:  # the topic is created with the first event
                    state.ends_at(0)
                else:
                    state.fail(str(error))
                    logger.warning("audit_topic_not_readable", cluster=name, error=str(error))
                await trio.sleep(self._retry_backoff_s)
            timeout_s = ANSWER_TIMEOUT_S

    async def _poll(self, cluster: Cluster, consumer: Consumer, state: ReadingState) -> None:
        for batches in await consumer.poll_batches(POLL_TIMEOUT_S):
            await each_record(batches, partial(self._apply, state))
            state.position = batches.next_offset
        # A request of its own: the consumer waits silently for a broker that is away.
        listed = await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=ANSWER_TIMEOUT_S)
        state.ends_at(listed[EVENTS].offset)

    def _apply(self, state: ReadingState, record: Record) -> None:
        if record.value is None:
            return
        try:
            self.ledger.apply(decode_audit_event(record.value))
        except AuditMessageError as error:
            state.unreadable += 1
            logger.warning("audit_record_skipped", offset=record.offset, error=str(error))
