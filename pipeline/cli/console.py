"""The start of the console script: interruptions end the process quietly from here on, while all else is imported.

Python itself shows the traceback of an interruption before that, while it starts.
"""

import os
import signal
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise the shell has it ignored
    signal.signal(signal.SIGINT, _end)
if os.getpid() == 1:  # of a container: the kernel drops signals that its process 1 does not handle
    signal.signal(signal.SIGTERM, _end)

from pipeline.cli.entry import main  # noqa: E402

__all__ = ["main"]
