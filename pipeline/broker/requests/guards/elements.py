"""Guard of requests with a list of independent elements, each of which names a resource: topics, groups, settings."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.broker.requests.guards.gate import Gate, Guard, Passage, Refused
from pipeline.protocol.schema import Message

Refuse = Callable[[Gate, Any, int], Any | None]
"""Returns the answer to an element that is refused, None for one that may pass. Takes the request's version, too."""


def element_guard(asked: str, answered: str, refuse: Refuse, answer: Callable[[], Any]) -> Guard:
    """Return a guard that refuses single elements of the field `asked`.

    The answers to refused elements go behind the others in the field `answered`. `answer` makes an empty answer, for a
    request of which nothing is left.
    """
    return partial(_guard, asked, answered, refuse, answer)


def _guard(
    asked: str,
    field: str,
    refuse: Refuse,
    answer: Callable[[], Any],
    gate: Gate,
    body: Any,
    version: int,
) -> Passage | Refused:
    elements = getattr(body, asked)
    passed, refused = [], []
    for element in elements or ():
        refusal = refuse(gate, element, version)
        if refusal is None:
            passed.append(element)
        else:
            refused.append(refusal)
    if not refused:
        return Passage(body)
    if not passed:
        return Refused(replace(answer(), **{field: tuple(refused)}))

    def merge(handled: Any) -> Message:
        answered: Message = replace(handled, **{field: (*getattr(handled, field), *refused)})
        return answered

    return Passage(replace(body, **{asked: tuple(passed)}), merge)
