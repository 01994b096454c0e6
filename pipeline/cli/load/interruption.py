"""Commands that use Spark end at once on Ctrl-C and SIGTERM, without a word, and leave no JVM behind."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from pipeline.cli.terminal import output

if TYPE_CHECKING:
    from pipeline.hadoop.load.spark_session import SparkApplication

Answer = TypeVar("Answer")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Signalled(BaseException):
    """A signal arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def with_spark(
    application: "SparkApplication", work: Callable[["SparkApplication"], Answer], description: str
) -> Answer:
    """Return what `work` returns or raise what it raises, after the end of the application.

    `work` runs in a thread: PySpark would take over the signals of the main thread. A signal ends this process, as a
    kill would: what is not committed by then never will be, and the next load deletes its files.
    """
    try:
        return _wait_for(application, work, description)
    except _Signalled as signalled:
        _silence()
        try:
            application.kill()
        finally:
            os._exit(signalled.exit_code)


def _wait_for(
    application: "SparkApplication", work: Callable[["SparkApplication"], Answer], description: str
) -> Answer:
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            try:
                answers.append(work(application))
            finally:
                application.stop()
        except BaseException as error:
            errors.append(error)

    def note(number: int, _frame: FrameType | None) -> None:
        for ignored in SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise _Signalled(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, note)
        thread = threading.Thread(target=attempt, name="spark", daemon=True)
        with output.progress(description, total=None):  # a terminal gets its cursor back before the end
            thread.start()
            thread.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if errors:
        raise errors[0]
    return answers[0]


def _silence() -> None:
    """Discard what the thread of `work`, whose JVM is about to end, has to say of that."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
