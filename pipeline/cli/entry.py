"""The entry point of `pipeline`. An interruption during imports ends the command as quietly as a later one."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_INTERRUPTED = 130


@contextmanager
def uncollected() -> Iterator[None]:
    """A context for imports: no garbage is collected, and none of the objects that exist at its end ever.

    Nearly all objects that imports create stay, and a collection visits them all.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Load the command line and run it. Interruptions before and after a command's own work end the process at once."""
    if callable(signal.getsignal(signal.SIGINT)):  # otherwise the shell has it ignored
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        with uncollected():
            _load_structlog()
            from pipeline.cli.main import main as run
        run()
    except KeyboardInterrupt:
        os._exit(EXIT_INTERRUPTED)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _end_at_once)


def raise_interruptions() -> None:
    """Let the command that is loaded now handle KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_at_once(*_: object) -> None:
    """End the process: an exception would be shown by whatever runs at the moment, such as a destructor."""
    os._exit(EXIT_INTERRUPTED)


def _load_structlog() -> None:
    """Load structlog without rich, which it would only use to draw tracebacks on terminals: 0.03 s, and 4 MB."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # to Python: a module that does not exist
    import structlog  # noqa: F401

    del sys.modules["rich"]
