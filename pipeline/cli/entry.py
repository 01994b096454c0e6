"""Where the command `pipeline` begins. An interruption while it is being loaded ends it as quietly as a later one."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from pipeline.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # `output.EXIT_INTERRUPTED`, which may not have been loaded
    run()
