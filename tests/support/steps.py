"""Drives work in steps."""

from typing import TypeVar

from pipeline.records.turns import Steps

_Result = TypeVar("_Result")


def to_end(steps: Steps[_Result]) -> _Result:
    """Do all steps in this thread, which waits for memory. Raises MemoryExhaustedError and the errors of the steps."""
    try:
        while True:
            charge = next(steps)
            if charge is not None:
                charge.wait()
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        steps.close()
