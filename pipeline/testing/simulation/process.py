"""A simulated process, and a trio run in which such processes live: one thread, one seed, no time but the simulated.

The task that starts a process makes it current (`PROCESS`); all tasks that come of it belong to it. A process that is
stopped, as by SIGSTOP, gets no turn: whatever wakes one of its tasks is kept until it goes on. Its timers ring late.

Invariants of `run_simulated`:
- The order of tasks, delays of threads, and all else that chance decides come from the seed. Nothing depends on hashes
  of strings, addresses of objects, other threads, or the collector of garbage, which does not run meanwhile.
- What it replaces (trio's choice of the next task, its threads and its clock, the clock of turns in threads, the HTTP
  endpoint, the cleaner's process, the log) is as before afterwards.
"""

import gc
import random
import signal
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import structlog
import trio
from trio._core import _run as trio_run

from pipeline.broker import assembly
from pipeline.broker import server as broker_server
from pipeline.broker.runtime import loop_watch, scan_threads
from pipeline.model import HostPort
from pipeline.testing.simulation.cleaner_in_process import cleaner_in_process
from pipeline.testing.simulation.schedule import Schedule
from pipeline.testing.simulation.trace import Trace

MAX_CPU_S = 60.0
MAX_SIMULATED_S = 1_000.0
"""Several times what a run takes that starts, has its trouble and recovers, each as late as it may."""
MAX_YIELDS = 3
SLOW_CALLS = 0.05
"""The part of the calls in threads that take simulated time."""
SLOW_CALL_S = 0.05
WATCH_INTERVAL_S = 1.0
"""Of the watchdog of the event loop, which nothing makes late but a process that is stopped."""


@dataclass(eq=False)
class Process:
    """State of a process: its tasks get their turn while it is alive and not stopped."""

    name: str
    is_alive: bool = True
    is_stopped: bool = False
    clock_error_s: float = 0.0
    """By how much the wall clock of its machine is wrong."""
    held: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)

    def stop(self) -> None:
        """Give its tasks no turn any more."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let its tasks go on, with all that woke them meanwhile."""
        self.is_stopped = False
        held, self.held = self.held, []
        for task, woken_with in held:
            trio_run.GLOBAL_RUN_CONTEXT.runner.reschedule(task, *woken_with)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def run_simulated(main: Callable[[], Awaitable[None]], seed: int, trace: Trace) -> None:
    """Run a trio program on simulated time. The same seed gives the same run."""
    scope = trio.CancelScope()

    async def run() -> None:
        with trio.move_on_after(MAX_SIMULATED_S) as time_limit, scope:
            await main()
        if time_limit.cancelled_caught:
            trace.faults_of_code.append(f"still running after {MAX_SIMULATED_S:g} s of simulated time")

    schedule = Schedule()
    with _deterministic(seed, schedule), _quiet(trace), _bounded(scope, trace):
        trio.run(run, clock=schedule)


@contextmanager
def _bounded(scope: trio.CancelScope, trace: Trace) -> Generator[None]:
    """End a run that goes round in circles without any time passing."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        trace.faults_of_code.append(f"still running after {MAX_CPU_S:g} s of processor time")
        if scope.cancel_called:
            raise TimeoutError
        scope.cancel()

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _deterministic(seed: int, schedule: Schedule) -> Generator[None]:
    """Replace all that chance and other threads decide in trio and in a broker."""
    state, reschedule = trio_run._r.getstate(), trio_run.Runner.reschedule
    rng = random.Random(f"threads {seed}")

    def reschedule_running(runner: Any, task: Any, *woken_with: Any) -> None:
        process = task.context.get(PROCESS)
        if process is not None and process.is_stopped:
            task._abort_func = None
            process.held.append((task, woken_with))
        else:
            reschedule(runner, task, *woken_with)

    async def call_later(function: Callable[..., Any], *args: Any, **_options: Any) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            if rng.random() < SLOW_CALLS:
                await trio.sleep(rng.random() * SLOW_CALL_S)
            for _ in range(rng.randint(0, MAX_YIELDS)):
                await trio.lowlevel.checkpoint()
            return function(*args)

    replacements: list[tuple[Any, str, Any]] = [
        (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (trio_run, "Instruments", _no_instruments),
        (trio_run.Runner, "reschedule", reschedule_running),
        (trio, "current_time", schedule.current_time),  # asked for so often that two calls less are worth it
        (trio.to_thread, "run_sync", call_later),
        (broker_server, "serve_service", _serve_nothing),
        (assembly, "LogCleaner", cleaner_in_process),
        (loop_watch, "INTERVAL_S", WATCH_INTERVAL_S),
        (scan_threads, "time", SimpleNamespace(monotonic=schedule.current_time)),  # a turn takes no simulated time
    ]
    known = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    gc.disable()
    gc.freeze()
    try:
        trio_run._r.seed(seed)
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in known:
            setattr(owner, name, value)
        trio_run._r.setstate(state)
        gc.collect()  # of what this run has made: all else is frozen
        gc.unfreeze()
        gc.enable()


def _no_instruments(_instruments: object) -> dict[str, object]:
    """Instruments of a run that has none: trio looks for them several times in each step."""
    return {}


async def _serve_nothing(
    _service: object, listen: HostPort, _security: object, *, task_status: trio.TaskStatus[HostPort]
) -> None:
    task_status.started(listen)
    await trio.sleep_forever()


@contextmanager
def _quiet(trace: Trace) -> Generator[None]:
    """Have all that is logged go to the trace."""

    def keep(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        process = PROCESS.get()
        trace.logged("-" if process is None else process.name, event)
        raise structlog.DropEvent

    known = structlog.get_config()
    structlog.configure(processors=[structlog.processors.add_log_level, keep], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**known)
