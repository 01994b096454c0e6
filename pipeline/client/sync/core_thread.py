"""The thread on which a `SyncProducer`'s cluster and producer run, under trio.

Owns the thread, its cluster and its producer. Invariants:
- Each call of another thread ends: with its result, at its deadline, or with the reason why the core has ended.
- What was handed over has an outcome once the thread has ended: accepted records by the producer, others refused here.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import trio

from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.delivery import PartlyAcceptedError
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.client.sync.deliveries import ResultTimeoutError, Sent, SentRecord
from pipeline.client.sync.handover import Handover
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.nurseries import essential_error
from pipeline.net.signals import Signal, Wakeup

logger = get_logger(__name__)

Result = TypeVar("Result")

OpenCore = Callable[[], AbstractAsyncContextManager[Producer]]

_LOOK_S = 0.5
"""How often a waiting thread asks whether the core still runs."""

_END_S = 5.0
"""Time that the core takes to end, on a busy machine."""


class ProducerThreadError(PipelineError):
    """The producer's thread has failed, and no record is sent any more. `__cause__` is the reason."""


class CoreThread:
    """Runs until `stop`. Made and used by other threads, unless a method says otherwise."""

    def __init__(self, open_core: OpenCore, max_bytes: int) -> None:
        """Raises what opening raises, as ConfigurationError."""
        self._open_core = open_core
        self.handover: Handover[Sent] = Handover(max_bytes, self._wake)
        self._arrived = Wakeup()
        self._progress = Signal()
        self._refused: deque[Sent] = deque()
        self._refused_bytes = 0
        self._max_refused_bytes = max_bytes
        self.given_up: list[UndeliveredRecord] = []
        """Records that the end of the core gave up, and that no call reported."""
        self._is_ready = threading.Event()
        self._end: BaseException | None = None
        """Why the core has ended, once it has."""
        self._producer: Producer
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._thread = threading.Thread(target=self._run, name="pipeline producer", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        self._raise_end()

    def require_other_thread(self) -> None:
        """Raise PipelineError on the core thread, where waiting for the core never ends, and in a forked process."""
        self.handover.require_same_process()
        if threading.current_thread() is self._thread:
            raise PipelineError("a callback must not wait for the producer, which calls it")

    def call(
        self, function: Callable[[Producer, float], Awaitable[Result]], timeout_s: float | None, grace_s: float = 0.0
    ) -> Result:
        """Run a function on the core with the producer and a deadline (trio's clock), and return what it returns.

        Raises what it raises, and ResultTimeoutError if there is no answer `grace_s` after the timeout.
        """
        self.require_other_thread()
        ended = threading.Event()
        result: list[Result] = []
        errors: list[Exception] = []

        async def run() -> None:
            deadline = trio.current_time() + (math.inf if timeout_s is None else timeout_s)
            try:
                result.append(await function(self._producer, deadline))
            except Exception as error:
                errors.append(error)
            finally:
                ended.set()

        self._start(run, ended.set)
        give_up_at = math.inf if timeout_s is None else time.monotonic() + timeout_s + grace_s
        while self._end is None and not ended.wait(max(0.0, min(_LOOK_S, give_up_at - time.monotonic()))):
            if time.monotonic() >= give_up_at:
                raise ResultTimeoutError(f"no outcome within {timeout_s:g} s")
        if result:
            return result[0]
        if errors:
            raise errors[0]
        self._thread.join(_END_S)  # the call was cancelled, and the reason comes with the end of the thread
        raise self._ended_error()

    def wait_for(self, sent: Sent, timeout_s: float | None) -> None:
        """Wait until `sent.done()`. Raises ResultTimeoutError, and PipelineError if the core has failed."""

        async def wait(_producer: Producer, deadline: float) -> None:
            with trio.move_on_at(deadline):
                await self._outcome(sent)

        try:
            self.call(wait, timeout_s)
        except PipelineError:
            if not sent.done():
                raise
        if not sent.done():
            raise ResultTimeoutError(f"no outcome within {timeout_s} s")

    def when_done(self, sent: Sent, call: Callable[[], None]) -> None:
        """Call on the core thread when `sent.done()`; here and now if it is done already."""

        def report() -> None:
            try:
                call()
            except Exception:
                logger.exception("delivery_callback_failed")

        async def wait() -> None:
            await self._outcome(sent)
            report()

        self.handover.require_same_process()
        if sent.done() or self._end is not None:
            report()
        else:
            self._start(wait, report)

    async def accepted(self, count: int, deadline: float) -> None:
        """Wait until the producer has accepted or refused the first `count` items. On the core thread."""
        with trio.move_on_at(deadline):
            while self.handover.done_count < count:
                await self._progress.wait()

    def take_refused(self) -> list[UndeliveredRecord]:
        """Return the records that the producer did not accept and that were not reported. On the core thread, or after
        its end. At most twice `max_bytes` of them are kept, the newest.
        """
        refused, self._refused, self._refused_bytes = self._refused, deque(), 0
        return [record for sent in refused for record in sent.undelivered()]

    def take_first_refusal(self) -> Exception | None:
        """Return why the first record was not accepted that was not reported, and forget all. On the core thread."""
        first = self._refused[0].error if self._refused else None
        self.take_refused()
        return first

    def stop(self, timeout_s: float | None = None) -> None:
        """End the core, at once; refuse what was not accepted. Undelivered records are given up."""
        self.handover.refuse(PipelineError("the producer is closed"))
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
        self._thread.join(timeout_s)

    def _raise_end(self) -> None:
        if self._end is not None:
            raise self._end

    def _start(self, run: Callable[[], Awaitable[None]], or_else: Callable[[], None]) -> None:
        """Start a task of the core, or call `or_else` if the core ends."""

        def start() -> None:
            try:
                self._nursery.start_soon(run)
            except RuntimeError:  # the nursery is closed; an error here would be one of trio's own
                or_else()

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            or_else()

    # On the core thread.

    def _run(self) -> None:
        try:
            trio.run(self._main)
            self._end = PipelineError("the producer is closed")
        except BaseException as failure:
            error = essential_error(failure)
            if self._is_ready.is_set():
                logger.error("producer_thread_failed", error=repr(error))
                self._end = ProducerThreadError(f"the producer's thread has failed: {error!r}")
                self._end.__cause__ = error
            else:
                self._end = error
        finally:
            self.handover.refuse(self._ended_error())
            self._refuse_waiting()
            self._is_ready.set()

    async def _main(self) -> None:
        with suppress(DeliveryError):  # raised by the end of the block; each record has its own
            async with self._open_core() as self._producer:
                self._token = trio.lowlevel.current_trio_token()
                try:
                    async with trio.open_nursery() as self._nursery:
                        self._nursery.start_soon(self._take_on)
                        self._is_ready.set()
                finally:
                    self.given_up = self._producer.close()

    async def _take_on(self) -> None:
        """Have the producer accept what the threads hand over, for ever."""
        while True:
            await self._arrived.wait_and_clear()
            while items := self.handover.take():
                for sent in items:
                    try:
                        sent.accepted = await sent.begin(self._producer)
                        sent.asked = None
                    except Exception as error:
                        self._refuse(sent, error)
                self.handover.done()
                self._progress.notify()

    def _refuse(self, sent: Sent, error: Exception) -> None:
        if isinstance(error, PartlyAcceptedError) and not isinstance(sent, SentRecord):
            sent.accepted = error.accepted
        sent.error = error
        self._refused.append(sent)
        self._refused_bytes += sent.size_bytes
        while self._refused_bytes > 2 * self._max_refused_bytes and len(self._refused) > 1:
            self._refused_bytes -= self._refused.popleft().size_bytes
        callback = sent.asked[-1] if isinstance(sent, SentRecord) and sent.asked else None
        if callback is not None:
            try:
                callback(None, error)
            except Exception:
                logger.exception("delivery_callback_failed")

    def _refuse_waiting(self) -> None:
        for sent in self.handover.waiting():
            if not sent.is_answered:
                self._refuse(sent, self._ended_error())

    async def _outcome(self, sent: Sent) -> None:
        while not sent.is_answered:
            await self._progress.wait()
        if sent.error is None and sent.accepted is not None:
            with suppress(PipelineError):
                await sent.accepted.wait()

    def _wake(self) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._arrived.set)

    def _ended_error(self) -> PipelineError:
        end = self._end
        if isinstance(end, ProducerThreadError):
            again = ProducerThreadError(str(end))
            again.__cause__ = end.__cause__
            return again
        return PipelineError("the producer is closed")
