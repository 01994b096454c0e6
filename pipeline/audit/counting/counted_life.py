"""Reports of one life of a mirror or of a member of a group, from its first count to its end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final, Protocol
from uuid import UUID

import trio

from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.events.report import CountReport
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import Clock

END_TIMEOUT_S: Final = 5.0
"""Time for the last report, which says that the life has ended."""


class CountedLife(Protocol):
    """Counter of one life. As `publisher.Counting`, with an end."""

    is_ended: bool

    def take_reports(self) -> list[CountReport]:
        """Return reports of all that changed since the last call."""

    def published(self, reports: Sequence[CountReport]) -> None:
        """Take note that brokers have these reports."""

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take these reports again next time."""

    def report_again(self) -> None:
        """Take all counts next time."""


def new_life(rng: Random) -> str:
    """Return an id that no other life has."""
    return str(UUID(int=rng.getrandbits(128), version=4))


@asynccontextmanager
async def reporting(
    counter: CountedLife, cluster: Cluster, *, interval_s: float, clock: Clock, rng: Random
) -> AsyncIterator[None]:
    """Report the counts to the audit topic of the cluster until the block ends.

    The end reports what is left, within `END_TIMEOUT_S`, also after an error or a cancellation. A cluster that is away
    delays reports; it never delays the block.
    """
    async with open_publisher(cluster, counter, clock=clock, rng=rng) as publisher:
        try:
            async with background_tasks() as nursery:
                nursery.start_soon(publisher.run, interval_s)
                yield
        finally:
            counter.is_ended = True
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                await publisher.publish()
