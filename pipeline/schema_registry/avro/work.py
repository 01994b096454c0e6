"""Bounds the work on schemas of strangers: some texts of a few hundred bytes would take for ever. Pure."""

from typing import Final

from pipeline.errors import PipelineError

MAX_STEPS: Final = 500_000
"""Steps for one request: less than a second. A record of 300 fields against 100 versions takes a quarter of them."""


class TooMuchWorkError(PipelineError):
    """A schema, or a comparison of schemas, takes more steps than a registry gives it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} takes too many steps; make the schema smaller, or nest it less")


class Work:
    """Steps that are left."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def take(self, what: str, steps: int = 1) -> None:
        """Take steps for `what`. Raises TooMuchWorkError when none are left."""
        self._left -= steps
        if self._left < 0:
            raise TooMuchWorkError(what)
