"""The entry point of `pipeline`. An interruption during imports ends the command as quietly as a later one."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
    """Load the command line and run it."""
    try:
        with uncollected():
            _load_structlog()
            from pipeline.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # `output.EXIT_INTERRUPTED`, which may not have been loaded
    run()


def _load_structlog() -> None:
    """Load structlog without rich, which it would only use to draw tracebacks on terminals: 0.03 s, and 4 MB."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # to Python: a module that does not exist
    import structlog  # noqa: F401

    del sys.modules["rich"]
