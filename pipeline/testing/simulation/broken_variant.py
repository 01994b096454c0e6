"""A rule that is broken on purpose for the length of a run, and the ways to break one."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio

from pipeline.testing.simulation.mirrors.plan import SitePlan
from pipeline.testing.simulation.plan import RunPlan, Variant
from pipeline.testing.simulation.plans import plan_for


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenVariant:
    """A rule that is not kept."""

    rule: str
    breaks: Variant
    first_seed: int = 1
    plan_for: Callable[[int], RunPlan | SitePlan] = plan_for
    every: int = 1
    """One seed of so many meets it often; `first_seed` is one of these, known to show it or to come soon before."""

    def seeds(self, last: int) -> Iterator[int]:
        """Yield all seeds up to the last one, those first that meet it often."""
        likely = range(self.first_seed % self.every or self.every, last + 1, self.every)
        yield from sorted(likely, key=lambda seed: seed < self.first_seed)
        yield from (seed for seed in range(1, last + 1) if seed not in likely)

    def plan(self, seed: int) -> RunPlan | SitePlan:
        """Return the plan of this seed, with the rule broken."""
        return replace(self.plan_for(seed), variant=self.breaks)


def replacing(owner: Any, name: str, replacement: Callable[[Any], Any]) -> Variant:
    """Replace an attribute by what `replacement` returns for it."""

    @contextmanager
    def replaced() -> Generator[None]:
        known = owner.__dict__.get(name)
        setattr(owner, name, replacement(getattr(owner, name)))
        try:
            yield
        finally:
            if known is None:
                delattr(owner, name)
            else:
                setattr(owner, name, known)

    return replaced


def both(first: Variant, second: Variant) -> Variant:
    """Break two things at once."""

    @contextmanager
    def broken() -> Generator[None]:
        with first(), second():
            yield

    return broken


def giving(value: object) -> Callable[[Any], Any]:
    """Return a replacement that gives this value, whatever it is called with."""

    def replacement(_known: Any) -> Any:
        return lambda *_args, **_options: value

    return replacement


async def do_nothing(_owner: Any) -> None:
    """Run for ever without doing anything."""
    await trio.sleep_forever()
