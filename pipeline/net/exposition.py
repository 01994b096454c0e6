"""Metrics as Prometheus reads them, of a service that has others to serve meanwhile.

A broker of thousands of groups has 100,000s of samples. They are taken in the event loop, for only there are the counts
still while they are read, with turns for others; a thread writes the text. A collector with very many samples gives its
family an iterator of these, which is drawn from in slices.
"""

from collections.abc import Iterable, Iterator, Sequence

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SLICE_S = 0.005
"""So long samples are taken before others have their turn."""
SAMPLES_AT_ONCE = 5000
"""Samples that are held before they become text, a family of more aside."""


class _Taken(Collector):
    """Families whose samples were taken."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def with_samples(family: Metric, samples: Iterator[Sample]) -> Metric:
    """The family, with samples that are taken as they are needed, once."""
    family.samples = samples  # type: ignore[assignment]
    return family


async def exposition(metrics: CollectorRegistry) -> bytes:
    """All metrics as text. Others have their turn meanwhile."""
    texts: list[bytes] = []
    families: list[Metric] = []
    count = 0
    turn_s = trio.current_time() + SLICE_S
    for family in metrics.collect():
        samples = []
        for sample in family.samples:
            samples.append(sample)
            if trio.current_time() >= turn_s:
                await trio.lowlevel.checkpoint()
                turn_s = trio.current_time() + SLICE_S
        family.samples = samples
        families.append(family)
        count += len(samples)
        if count >= SAMPLES_AT_ONCE:
            texts.append(await _write(families))
            families, count = [], 0
    return b"".join([*texts, await _write(families)])


async def _write(families: Sequence[Metric]) -> bytes:
    return await trio.to_thread.run_sync(generate_latest, _Taken(families))
