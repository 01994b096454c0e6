"""Slices of large requests, so that no request waits for the whole of another one.

A handler answers at once, which suits usual requests, but holds the event loop for seconds with the largest ones that
the protocol allows. Large requests of the keys in SLICINGS, whose elements are independent, are handled in slices:
other requests have a turn between two slices, and the answers of the slices are joined.

Invariants: the answer has the same elements in the same order as that of the whole request; a request that is not large
costs two comparisons.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import trio

from pipeline.net.answers import LargeAnswer
from pipeline.protocol.api import ApiKey

_Item = TypeVar("_Item")

SHORT_NAME_LETTERS = 250
"""A name of up to this many letters, the most that groups usually have, costs no more than a short one."""
LETTERS_OF_AN_ELEMENT = 100
"""This many more letters cost about as much as another element: a hash of the name finds a group's partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """The fields of a request's elements (`asked`) and of their answers (`answered`), and the elements of a slice.

    `parts`: the fields, of an element and of its answer, with a list whose length counts.
    """

    asked: str
    answered: str
    size: int
    is_once: bool = False
    """True if a repeated element is answered once."""
    parts: tuple[str, str] | None = None

    def is_large(self, body: Any) -> bool:
        """True if the request has more than one slice."""
        elements = getattr(body, self.asked) or ()
        if len(elements) > self.size:
            return True
        if self.parts is None:
            return sum(map(weight_of, elements)) > self.size
        return sum(len(getattr(element, self.parts[0])) for element in elements) > self.size

    def slices(self, elements: Sequence[Any]) -> Iterator[list[tuple[Any, bool]]]:
        """Yield slices of the elements, each element with True if it continues the one before it."""
        part: list[tuple[Any, bool]] = []
        count = 0
        for element in dict.fromkeys(elements) if self.is_once else elements:
            for piece, goes_on in self._pieces(element):
                part.append((piece, goes_on))
                count += weight_of(piece) if self.parts is None else max(1, len(getattr(piece, self.parts[0])))
                if count >= self.size:
                    yield part
                    part, count = [], 0
        if part:
            yield part

    def _pieces(self, element: Any) -> Iterator[tuple[Any, bool]]:
        if self.parts is None or len(getattr(element, self.parts[0])) <= self.size:
            yield element, False
            return
        name = self.parts[0]
        items = getattr(element, name)
        for start in range(0, len(items), self.size):
            yield replace(element, **{name: items[start : start + self.size]}), start > 0

    def join(self, answers: list[Any], part: list[tuple[Any, bool]], more: Iterable[Any]) -> None:
        """Add the answers of a slice (`more`) to the answers of the slices before it."""
        for (_, goes_on), answer in zip(part, more, strict=True):
            if goes_on and self.parts is not None:
                name = self.parts[1]
                answers[-1] = replace(answers[-1], **{name: [*getattr(answers[-1], name), *getattr(answer, name)]})
            else:
                answers.append(answer)


def weight_of(element: Any) -> int:
    """Return the number of elements that this one counts for: a very long name costs as much as many short ones."""
    if not isinstance(element, str) or len(element) <= SHORT_NAME_LETTERS:
        return 1
    return 1 + len(element) // LETTERS_OF_AN_ELEMENT


class _Queue:
    """Large work that waits for its turn: one piece of it runs between two turns of all other tasks.

    A resumed task resumes the next one, which then runs in the next round of the event loop.
    """

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_idle = True

    async def wait(self) -> None:
        if not self._is_idle:
            await self._waiting.park()
            self._resume_next()
            return
        self._is_idle = False
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._resume_next()

    def _resume_next(self) -> None:
        self._is_idle = not self._waiting
        self._waiting.unpark()


_QUEUE: trio.lowlevel.RunVar[_Queue] = trio.lowlevel.RunVar("large work")


async def give_way() -> None:
    """Give a turn to other requests before a piece of large work: to small ones, then to large ones that came before.

    With plain checkpoints one round of the event loop would do a piece of each of many large requests.
    """
    try:
        queue = _QUEUE.get()
    except LookupError:
        _QUEUE.set(queue := _Queue())
    await queue.wait()


class Turns:
    """Turns that long work gives to other requests, one after each `size` elements."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._left = self._size = size

    async def after(self, count: int = 1) -> None:
        """Count finished elements, and give other requests a turn if it is time."""
        self._left -= count
        if self._left <= 0:
            self._left = self._size
            await give_way()


OF_PARTITIONS = Slicing(asked="topics", answered="topics", size=2000, parts=("partitions", "partitions"))

SLICINGS: Mapping[ApiKey, Slicing] = MappingProxyType(
    {
        ApiKey.LIST_OFFSETS: OF_PARTITIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OF_PARTITIONS,
        ApiKey.DESCRIBE_GROUPS: Slicing(asked="groups", answered="groups", size=200, is_once=True),
        ApiKey.FIND_COORDINATOR: Slicing(asked="coordinator_keys", answered="coordinators", size=2000),
    }
)

_Handle = Callable[[Any], Any]


async def handle_in_slices(slicing: Slicing, body: Any, handle: _Handle) -> LargeAnswer:
    """Handle a large request in slices, with turns for other requests in between, and join the answers."""
    answers: list[Any] = []
    first: Any = None
    copied_bytes = 0
    for part in slicing.slices(getattr(body, slicing.asked)):
        await give_way()
        answer = handle(replace(body, **{slicing.asked: [element for element, _ in part]}))
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, LargeAnswer):
            copied_bytes += answer.copied_bytes
            answer = answer.answer
        first = answer if first is None else first
        slicing.join(answers, part, getattr(answer, slicing.answered))
    return LargeAnswer(replace(first, **{slicing.answered: answers}), copied_bytes)


async def for_each(items: Iterable[_Item], workers: int, act: Callable[[_Item], Awaitable[None]]) -> None:
    """Act on every item, `workers` at a time, with a turn for other requests before each."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await give_way()
            await act(item)

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(work)
