"""Bounds the work on schemas of strangers: some texts of a few hundred bytes would take for ever. Pure.

A schema has its own steps (`Work`). All that a request does with schemas takes from the request's steps as well
(`steps_of_a_request`), also what is parsed for it of stored schemas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from pipeline.errors import PipelineError

MAX_STEPS: Final = 500_000
"""Steps for one schema. A step takes 1 to 2 microseconds of an idle core."""
MAX_COMPARISON_STEPS: Final = 4_000_000
"""Steps for parsing stored versions and comparing a schema with them: some 900 versions of 300 fields."""


class TooMuchWorkError(PipelineError):
    """A schema, or a comparison of schemas, takes more steps than a registry gives it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} takes too many steps; make the schema smaller, or nest it less")


class RequestStepsError(Exception):
    """A request takes more steps than it has. Nothing between `steps_of_a_request` and the schema handles it."""


class _Steps:
    """Steps that a request has left."""

    def __init__(self, steps: int) -> None:
        self.left = steps


_REQUEST: Final[ContextVar[_Steps | None]] = ContextVar("steps of the request", default=None)


@contextmanager
def steps_of_a_request(steps: int) -> Iterator[None]:
    """Give all work within the block `steps` together; it raises RequestStepsError when none are left."""
    token = _REQUEST.set(_Steps(steps))
    try:
        yield
    finally:
        _REQUEST.reset(token)


class Work:
    """Steps that are `left` for a schema or a comparison."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps
        self._request = _REQUEST.get()

    def take(self, what: str, steps: int = 1) -> None:
        """Take steps for `what`. Raises TooMuchWorkError when none are left, RequestStepsError (see there)."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWorkError(what)
        if self._request is not None:
            self._request.left -= steps
            if self._request.left < 0:
                raise RequestStepsError
