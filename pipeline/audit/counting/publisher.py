"""Publishes reports of counts, at regular intervals, to the audit topic of the cluster where they were counted.

Invariants:
A. A cluster that is away only delays reports. At most one set of reports is on its way; the counts that it lacks wait
   in the counter, where they take no more memory than before.
B. A life sign is sent once the reports before it, and the other portions of its own, are acknowledged: so a life sign
   that arrived says the truth about the rows.
C. If the audit topic was recreated or lost reports of this process, all that the counter has is reported again, and a
   report says that earlier ones are gone, of whatever process. With a `PlaceFile` this holds over restarts. While the
   process cannot read back its last report, life signs say that it is not known whether reports are gone.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Final, Protocol

import trio

from pipeline.audit.counting.audit_topic import MAX_EVENT_BYTES, ensure_audit_topic
from pipeline.audit.counting.published_place import (
    EVENTS_READ,
    MAX_UNSEEN,
    READ_PARTITION,
    PlaceFile,
    PublishedPlace,
    is_still_there,
    report_digest,
)
from pipeline.audit.events.encoding import encode_count_report, encode_key, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.net.nurseries import lasting_nursery, unwrapped_errors
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.compression import Codec

DEFAULT_INTERVAL_S: Final = 10.0
ROUNDS_UNSEEN: Final = 6
"""Most rounds of reports after which places that could not be read back are tried again: after 2, 4, and so many."""
ROWS_ENCODED_AT_ONCE: Final = 50
"""More rows than these are encoded in a thread, so that the event loop goes on."""

REPORTER: Final = ProducerConfig(
    # Repeated and overtaken reports change nothing: without producer ids brokers remember nothing of short lives.
    idempotence=False,
    compression=Codec.ZSTD,
    max_request_size=MAX_EVENT_BYTES,
    buffer_memory=4 * MAX_EVENT_BYTES,
    max_block_ms=30_000,
    delivery_timeout_ms=30_000,
    request_timeout_ms=15_000,
)

logger = get_logger(__name__)


class Counting(Protocol):
    """A counter whose reports are published. `published` and `put_back` follow each `take_reports`, one of the two."""

    def take_reports(self) -> list[CountReport]:
        """Return reports of all that changed since the last call."""

    def published(self, reports: Sequence[CountReport]) -> None:
        """Take note that brokers have these reports. Called in a thread: may write files."""

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take these reports again next time: brokers may lack some."""

    def report_again(self) -> None:
        """Take all counts next time, whether they changed or not: earlier reports are gone."""


class LifeCounting(Counting, Protocol):
    """A counter of one life, which ends."""

    def end(self) -> None:
        """Say in the next report that the life has ended."""

    def may_rest(self) -> bool:
        """True if no report is due yet, as there is nothing to report. Asked each interval."""


class CountPublisher:
    """Publishes the reports of a counter. Made by `open_publisher`; tasks may share it."""

    def __init__(
        self, counter: Counting, cluster: Cluster, producer: Producer, place_file: PlaceFile | None = None
    ) -> None:
        self._counter = counter
        self._cluster = cluster
        self._producer = producer
        self._place_file = place_file
        self._turn = trio.Lock()
        self._woken = trio.Event()
        self._place: PublishedPlace | None = None
        """Place of the last report; None before the first, and if the cluster has no ids of topics."""
        self._is_looked_up = False
        """True once `_place` is of this process."""
        self._unseen: tuple[PublishedPlace, ...] = ()
        """Places at which earlier reports could not be read back (invariant C)."""
        self._rounds_unseen = self._failed_looks = 0
        self._is_after_loss = False
        """True if the next life sign is to say that reports are gone (invariant C)."""
        self._is_ensured = False

    async def run(self, interval_s: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Publish after each `interval_s`, and when woken, until cancelled; not while `unless` returns True."""
        while True:
            with trio.move_on_after(interval_s):
                await self._woken.wait()
            self._woken = trio.Event()
            await self.publish(unless)

    def wake(self) -> None:
        """Have `run` publish at once."""
        self._woken.set()

    async def publish(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Publish what changed, and return True. If that fails, log it, keep the counts and return False.

        Reports of other tasks go first. Nothing is published if `unless` returns True after them.
        """
        try:
            await self.publish_or_raise(unless)
        except PipelineError as error:
            logger.warning("audit_publish_failed", error=str(error))
            return False
        return True

    async def publish_or_raise(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Publish what changed. Raises KafkaError, DeliveryError, NetworkError; the counts are kept then.

        The audit topic is created with the first reports: by then the brokers that will hold it are there.
        """
        async with self._turn:
            if unless():
                return
            if self._place is None and self._place_file is not None:
                self._place = await trio.to_thread.run_sync(self._place_file.read)
                self._unseen = () if self._place is None else self._place.unseen
            known = len(self._unseen)
            if await self._publish_all():
                logger.warning("audit_reports_lost", help="all counts of this process are reported again")
                self._counter.report_again()
                await self._publish_all()
            elif len(self._unseen) != known:  # the sign that says so is not to wait
                await self._publish_all()

    async def _publish_all(self) -> bool:
        """Publish what changed. Return True if earlier reports are gone: then all is to be reported again."""
        reports = self._counter.take_reports()
        if not reports:
            return False
        try:
            if not self._is_ensured or AUDIT_TOPIC not in self._cluster.view.topics:
                await ensure_audit_topic(self._cluster)
                self._is_ensured = True
            leader_epoch = self._cluster.view.leader_epoch_of(EVENTS_READ)
            parts = [part for report in reports for part in portions(report)]
            place = await self._send([part for part in parts if part.life is None], leader_epoch)
            signs = [part for part in parts if part.life is not None]
            signs = [replace(sign, is_after_loss=self._is_after_loss, unseen=len(self._unseen)) for sign in signs]
            place = await self._send(signs, leader_epoch) or place  # invariant B
            is_lost = not self._is_after_loss and await self._is_lost(place)
        except BaseException:
            self._is_ensured = False
            self._counter.put_back(reports)
            raise
        self._is_after_loss = is_lost
        with trio.CancelScope(shield=True):  # brokers have them, and the counter is to know
            await trio.to_thread.run_sync(self._note, reports, None if is_lost else place)
        return is_lost

    def _note(self, reports: Sequence[CountReport], place: PublishedPlace | None) -> None:
        """Note what was published, and where: not before the loss of earlier reports is said."""
        self._counter.published(reports)
        if place is None:
            return
        self._place, self._is_looked_up = replace(place, unseen=self._unseen), True
        if self._place_file is not None:
            self._place_file.write(self._place)

    async def _send(self, parts: Sequence[CountReport], leader_epoch: int) -> PublishedPlace | None:
        """Send reports, and return the place of the last one; None if the cluster has no ids of topics."""
        deliveries = []
        value = b""
        for part in parts:
            if len(part.rows) + len(part.positions) > ROWS_ENCODED_AT_ONCE:
                value = await trio.to_thread.run_sync(encode_count_report, part)
            else:
                value = encode_count_report(part)
            delivery = await self._producer.send(AUDIT_TOPIC, value, key=encode_key(part), partition=READ_PARTITION)
            deliveries.append(delivery)
        await self._producer.flush()
        offset = -1
        for delivery in deliveries:
            offset = (await delivery.wait()).offset
        topic = self._cluster.view.topics.get(AUDIT_TOPIC)
        if offset < 0 or topic is None or topic.id == ZERO_UUID:
            return None
        return PublishedPlace(topic_id=topic.id, leader_epoch=leader_epoch, offset=offset, digest=report_digest(value))

    async def _is_lost(self, now: PublishedPlace | None) -> bool:
        """Return True if the last report before these is gone, or an earlier one (invariant C).

        The topic is read at the start of a process and when its leader has changed. Places that could not be read then
        are in `_unseen` afterwards, and are tried again.
        """
        before = self._place
        if before is None or now is None:
            return False
        if now.topic_id != before.topic_id or now.offset <= before.offset:
            self._unseen = ()
            return True
        is_new = not (self._is_looked_up and now.leader_epoch == before.leader_epoch)
        self._rounds_unseen = self._rounds_unseen + 1 if self._unseen else 0
        if not is_new and (not self._unseen or self._rounds_unseen < min(2 * self._failed_looks, ROUNDS_UNSEEN)):
            return False
        self._rounds_unseen, self._failed_looks = 0, self._failed_looks + 1
        places = [*self._unseen, *([replace(before, unseen=())] if is_new else [])]
        while places:  # what is known so far stays, should this be cancelled
            try:
                if not await is_still_there(self._cluster, places[0]):
                    self._unseen = ()
                    return True
            except PipelineError as error:
                logger.warning("audit_place_not_read", error=str(error), help="allow READ on the topic _audit")
                break
            places.pop(0)
        is_too_much = len(places) > MAX_UNSEEN
        self._unseen = () if is_too_much else tuple(places)
        if not places:
            self._failed_looks = 0
        return is_too_much


@asynccontextmanager
async def open_publisher(
    cluster: Cluster, counter: Counting, *, clock: Clock, rng: Random, place_file: PlaceFile | None = None
) -> AsyncIterator[CountPublisher]:
    """Open a publisher until the block ends. `place_file`: of a process whose counts outlive it.

    The publisher goes on while a cancelled block unwinds, so that the block may publish the last counts in a shielded
    scope.
    """
    with unwrapped_errors():
        async with lasting_nursery() as nursery:
            producer = await nursery.start(_keep_reporter, cluster, clock, rng)
            yield CountPublisher(counter, cluster, producer, place_file)


async def _keep_reporter(
    cluster: Cluster, clock: Clock, rng: Random, *, task_status: trio.TaskStatus[Producer]
) -> None:
    async with open_producer(cluster, REPORTER, clock=clock, rng=rng) as producer:
        task_status.started(producer)
        await trio.sleep_forever()


async def publish_reports(cluster: Cluster, reports: Sequence[CountReport], *, clock: Clock, rng: Random) -> None:
    """Publish reports once, as a load does at its end. Raises KafkaError, DeliveryError, NetworkError.

    Repeated reports change nothing.
    """
    async with open_publisher(cluster, _Once(reports), clock=clock, rng=rng) as publisher:
        await publisher.publish_or_raise()


class _Once:
    """Reports that are published as they are."""

    def __init__(self, reports: Sequence[CountReport]) -> None:
        self._reports = reports

    def take_reports(self) -> list[CountReport]:
        return list(self._reports)

    def published(self, reports: Sequence[CountReport]) -> None:
        pass

    def put_back(self, reports: Sequence[CountReport]) -> None:
        pass

    def report_again(self) -> None:
        pass
