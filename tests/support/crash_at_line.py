"""Runs a program, and kills its process (SIGKILL) when it is about to run a line of it for the n-th time.

python -m tests.support.crash_at_line LINE TIMES PROGRAM [ARGUMENT ...]
"""

import os
import runpy
import signal
import sys
from types import FrameType
from typing import Any


class Crash:
    """A trace function that counts how often the line is about to run."""

    def __init__(self, program: str, line: int, times: int) -> None:
        self._program = program
        self._line = line
        self._left = times

    def of_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self.of_line if frame.f_code.co_filename == self._program else None

    def of_line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and frame.f_lineno == self._line:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.of_line


if __name__ == "__main__":
    line, times, program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.settrace(Crash(program, int(line), int(times)).of_call)
    runpy.run_path(program, run_name="__main__")
