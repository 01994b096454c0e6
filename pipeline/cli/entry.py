"""The entry point of `pipeline`. An interruption during imports ends the command as quietly as a later one."""

import gc
import sys


def main() -> None:
    """Load the command line and run it."""
    gc.disable()  # nearly all objects that imports create stay
    try:
        from pipeline.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # `output.EXIT_INTERRUPTED`, which may not have been loaded
    gc.freeze()
    gc.enable()
    run()
