"""Lists of an answer that may be long: all subjects, all versions that bear an id.

Invariants:

A. Such lists are made one at a time, however many are asked for: neither their work nor their memory adds up. Equal
   requests that wait get one list. A request that has waited for MAX_WAIT_S gets a 503: its client may have left.
B. While one is made, other requests have their turn after `TURN_S` of work.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from time import perf_counter
from typing import Final, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import Response

from pipeline.schema_registry.api.access import SubjectAccess
from pipeline.schema_registry.api.api_requests import page_bounds
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.contexts import ANY_CONTEXT, matches_prefix
from pipeline.schema_registry.state.state import RegistryState

SHORT_LENGTH: Final = 200
"""A list up to this length is made at once: that takes no longer than to answer any other request."""
LONG: Final = SHORT_LENGTH + 1
"""Stands for the length of a list that is long in bytes, or of a length that is known only once it is made."""
KEPT_LISTS: Final = 4
TURN_S: Final = 0.005
MAX_WAIT_S: Final = 20.0

ItemT = TypeVar("ItemT")


class LongLists:
    """The one list that is being made (invariant A), and the last ones, for requests that waited for the same."""

    def __init__(self, access: SubjectAccess) -> None:
        self._access = access
        self._one_at_a_time = trio.Lock()
        self._begun = 0
        self._made: OrderedDict[Hashable, tuple[int, Response]] = OrderedDict()
        """By request, with the numbers in the order of their beginnings."""

    async def answer(self, request: Request, length: int, make: Callable[[], Awaitable[Response]]) -> Response:
        """Make the answer of a list of this length, or return one that was begun after this call.

        Raises as `make`, and RegistryError 503.
        """
        if length <= SHORT_LENGTH:
            return await make()
        viewer, accepted = self._access.viewer(request), request.headers.get("accept")
        key = (request.scope["path"], request.scope["query_string"], accepted, viewer)
        wanted = self._begun + 1
        with trio.move_on_after(MAX_WAIT_S) as waiting:
            await self._one_at_a_time.acquire()
        if waiting.cancelled_caught:
            raise RegistryError(Code.OVERLOADED, f"Other lists were made for {MAX_WAIT_S:g} s. Try again later.")
        try:
            number, answer = self._made.pop(key, (0, None))
            if answer is None or number < wanted:
                self._begun = number = self._begun + 1
                answer = await make()
            self._made[key] = number, answer
            while len(self._made) > (KEPT_LISTS if self._one_at_a_time.statistics().tasks_waiting else 0):
                self._made.popitem(last=False)
        finally:
            self._one_at_a_time.release()
        return answer


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
