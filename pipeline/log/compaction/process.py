"""The cleaner's process: `python -m pipeline.log.compaction.process`, with a socket as its standard input.

The process reads jobs from the socket, one line each, does them one after the other and answers with reports. It ends
when the other side closes the socket, and writes no files but those of `cleaner.clean`.
"""

import socket
import time
from collections.abc import Callable

from pipeline.errors import DiskFullError, PipelineError
from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import CleaningJob, CleaningProgress, Failed, Report, encode_report
from pipeline.log.files import DiskFiles

PROGRESS_INTERVAL_S = 1.0


class Throttle:
    """Limits the rate of bytes moved by sleeping, and reports progress from time to time."""

    def __init__(
        self,
        bytes_per_second: float,
        report: Callable[[int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._report = report
        self._clock = clock
        self._sleep = sleep
        self._started_s = self._reported_s = clock()
        self._moved_bytes = 0

    def moved(self, size_bytes: int) -> None:
        """Count bytes that were read or written; returns when more may be."""
        self._moved_bytes += size_bytes
        due_s = self._started_s + self._moved_bytes / self._rate
        while True:
            now_s = self._clock()
            if now_s - self._reported_s >= PROGRESS_INTERVAL_S:
                self._reported_s = now_s
                self._report(self._moved_bytes)
            if now_s >= due_s:
                return
            self._sleep(min(PROGRESS_INTERVAL_S, due_s - now_s))


def serve(channel: socket.socket) -> None:
    """Do jobs until the other side closes the channel."""

    def send(report: Report) -> None:
        channel.sendall(encode_report(report))

    with channel.makefile("rb") as lines:
        for line in lines:
            job = CleaningJob.decode(line)
            throttle = Throttle(
                job.bytes_per_second, lambda moved_bytes: send(CleaningProgress(moved_bytes=moved_bytes))
            )
            try:
                for report in clean(job, DiskFiles(), throttle.moved):
                    send(report)
            except PipelineError as error:
                send(Failed(reason=str(error), is_full=isinstance(error, DiskFullError)))


if __name__ == "__main__":
    with socket.socket(fileno=0) as standard_input:
        serve(standard_input)
