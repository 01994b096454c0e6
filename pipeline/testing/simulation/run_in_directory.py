"""A simulated run with a directory for its disks, and faults that no run of any scenario may contain."""

import os
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from pipeline.log.known_producers import KNOWN_PRODUCERS
from pipeline.records.memory import OPENED_BATCHES
from pipeline.testing.simulation.plan import Result, Variant
from pipeline.testing.simulation.process import run_simulated

MEMORY = Path("/dev/shm")
"""Where the disks are if there is such a folder: nothing survives there, and nothing has to."""


def run_in_directory(result: Result, variant: Variant, main: Callable[[Path], Awaitable[None]]) -> None:
    """Run `main` on simulated time, with the code broken as `variant` says. Problems go to the result."""
    trace, held_bytes, known_producers = result.trace, OPENED_BATCHES.held_bytes, KNOWN_PRODUCERS.count
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=where) as name, variant():
        trace.directory = name
        try:
            run_simulated(lambda: main(Path(name)), result.seed, trace)
        except Exception as error:
            result.problems.append("the simulation itself failed: " + "".join(traceback.format_exception(error)))
    KNOWN_PRODUCERS.count = known_producers  # brokers that were killed have forgotten none
    result.problems += trace.faults_of_code
    if OPENED_BATCHES.held_bytes != held_bytes:
        result.problems.append(
            f"{OPENED_BATCHES.held_bytes - held_bytes} bytes are charged for batches that nobody opens"
        )
