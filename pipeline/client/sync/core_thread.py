"""The thread on which a `SyncProducer`'s cluster and producer run, under trio.

Owns the thread, its cluster and its producer. Invariants:
- Each call of another thread ends: with its result, at its deadline, or with the reason why the core has ended.
- What was handed over has an outcome once the thread has ended: accepted records by the producer, others refused here.
- A record that was given up or refused stays in the report until a call has returned it: a call that is interrupted, or
  whose time is over, loses none.
"""

import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import trio

from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.client.sync.acceptance import RecordAcceptance, SyncCore
from pipeline.client.sync.deliveries import ResultTimeoutError, Sent
from pipeline.client.sync.handover import Handover
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.nurseries import essential_error
from pipeline.net.signals import Wakeup

logger = get_logger(__name__)

Result = TypeVar("Result")

OpenCore = Callable[[], AbstractAsyncContextManager[SyncCore]]

_LOOK_S = 0.5
"""How often a waiting thread asks whether the core still runs."""

_END_S = 5.0
"""Time that the core takes to end, on a busy machine."""


class ProducerThreadError(PipelineError):
    """The producer's thread has failed, and no record is sent any more. `__cause__` is the reason."""


class CoreThread:
    """Runs until `stop`. Made and used by other threads, unless a method says otherwise."""

    def __init__(self, open_core: OpenCore, max_bytes: int, max_block_s: float) -> None:
        """Raises what opening raises, as ConfigurationError."""
        self._open_core = open_core
        self.handover: Handover[Sent] = Handover(max_bytes, self._wake)
        self.acceptance = RecordAcceptance(self.handover, max_block_s, 2 * max_bytes)
        self._arrived = Wakeup()
        self._report: list[UndeliveredRecord] = []
        self._reporting = threading.Lock()
        self._is_ready = threading.Event()
        self._is_stopping = False
        self._end: BaseException | None = None
        """Why the core has ended, once it has."""
        self._producer: Producer
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery
        self._thread = threading.Thread(target=self._run, name="pipeline producer", daemon=True)
        self._thread.start()
        try:
            self._is_ready.wait()
        except BaseException:  # Ctrl-C while it connects to ZooKeeper
            self.stop(0)
            raise
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
                await self.acceptance.outcome(sent)

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
            await self.acceptance.outcome(sent)
            report()

        self.handover.require_same_process()
        if sent.done() or self._end is not None:
            report()
        else:
            self._start(wait, report)

    def keep_report(self, records: list[UndeliveredRecord]) -> None:
        """Keep records that are given up, and all refused ones, for the report. Not while the core runs elsewhere."""
        with self._reporting:
            self._report += records
            self._report += self.acceptance.take_refused()

    def take_report(self) -> list[UndeliveredRecord]:
        """Return the records that were kept, each once."""
        with self._reporting:
            report, self._report = self._report, []
            return report

    def stop(self, timeout_s: float | None = None) -> None:
        """End the core, at once; refuse what was not accepted. Undelivered records are given up."""
        self.handover.refuse(PipelineError("the producer is closed"))
        self._is_stopping = True
        with suppress(trio.RunFinishedError):
            if self._token is not None:  # otherwise the core sees the flag
                self._token.run_sync_soon(self._scope.cancel)
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
            assert self._token is not None
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
            self.acceptance.refuse_all(self._ended_error())
            self.keep_report([])
            self._is_ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._is_stopping:
            return
        with self._scope, suppress(DeliveryError):  # raised by the end of the block; each record has its own
            async with self._open_core() as core:
                self._producer = core.producer
                try:
                    async with trio.open_nursery() as self._nursery:
                        self._is_ready.set()
                        while True:
                            await self._arrived.wait_and_clear()
                            await self.acceptance.take_on(core, self._nursery)
                finally:
                    self.keep_report(core.producer.close())

    def _wake(self) -> None:
        with suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(self._arrived.set)

    def _ended_error(self) -> PipelineError:
        end = self._end
        if isinstance(end, ProducerThreadError):
            again = ProducerThreadError(str(end))
            again.__cause__ = end.__cause__
            return again
        return PipelineError("the producer is closed")
