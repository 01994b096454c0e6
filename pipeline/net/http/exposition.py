"""Metrics as Prometheus text, written while the service goes on serving.

A broker of thousands of groups has 100,000s of samples. They are read in the event loop, where no count changes during
a read, with turns for others; a thread writes the text. A collector with very many samples gives its family an iterator
of samples, which is read in slices.
"""

from collections.abc import Iterable, Iterator, Sequence

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SLICE_S = 0.005
"""Time for which samples are read before others have their turn."""
SAMPLES_AT_ONCE = 5000
"""Samples that are collected before they become text, unless one family has more."""


class _ReadFamilies(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def with_samples(family: Metric, samples: Iterator[Sample]) -> Metric:
    """Return the family with samples that are read lazily, once."""
    family.samples = samples  # type: ignore[assignment]
    return family


async def exposition(metrics: CollectorRegistry) -> bytes:
    """Return all metrics as text. Others have their turn meanwhile."""
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
    return await trio.to_thread.run_sync(generate_latest, _ReadFamilies(families))
