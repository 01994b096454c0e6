"""Lists of an answer that may be long: all subjects, all versions that bear an id.

Invariants:

A. Such lists are made one at a time, however many are asked for: neither their work nor their memory adds up.
B. While one is made, other requests have their turn after `TURN_S` of work.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final, TypeVar

import trio
from starlette.requests import Request

from pipeline.schema_registry.api.api_requests import page_bounds
from pipeline.schema_registry.state.contexts import ANY_CONTEXT, matches_prefix
from pipeline.schema_registry.state.state import RegistryState

SHORT_LENGTH: Final = 200
"""A list up to this length is made at once: that takes no longer than to answer any other request."""
LONG: Final = SHORT_LENGTH + 1
"""Stands for the length of a list that is long in bytes, or of a length that is known only once it is made."""
TURN_S: Final = 0.005

ItemT = TypeVar("ItemT")


class LongLists:
    """The one list that is being made (invariant A)."""

    def __init__(self) -> None:
        self._one_at_a_time = trio.Lock()

    @asynccontextmanager
    async def making(self, length: int) -> AsyncIterator[None]:
        """Wait for the turn to make a list of this length."""
        if length <= SHORT_LENGTH:
            yield
            return
        async with self._one_at_a_time:
            yield


async def page_in_turns(request: Request, items: Iterable[ItemT | None], *, most: int | None = None) -> list[ItemT]:
    """Return the part of the items that `offset` and `limit` name; see `page`. None stands for an item left out."""
    first, end = page_bounds(request, most=most)
    found: list[ItemT] = []
    position, began = 0, perf_counter()
    for item in items:
        if item is not None:
            if end is not None and position >= end:
                break
            if position >= first:
                found.append(item)
            position += 1
        if perf_counter() - began > TURN_S:
            await trio.lowlevel.checkpoint()
            began = perf_counter()
    return found


def walk_subjects(state: RegistryState, prefix: str, *, deleted: bool) -> Iterator[str | None]:
    """Yield the subjects in order, and None for each one that is left out: it takes time, too.

    `deleted`: also those whose versions are all soft-deleted. `prefix`: see `matches_prefix`.
    """
    for subject in state.names.in_order():
        is_meant = (prefix == ANY_CONTEXT or matches_prefix(prefix, subject)) and (deleted or state.is_live(subject))
        yield subject if is_meant else None
