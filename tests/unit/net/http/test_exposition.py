from collections.abc import Iterator

import pytest
import trio
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pipeline.net.http.exposition import SAMPLES_AT_ONCE, exposition, with_samples
from tests.support.loop_steps import measured_steps

COUNT = 20 * SAMPLES_AT_ONCE
MAX_STEP_S = 0.2


class Large(Collector):
    """One family of very many samples, between small ones."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("first", "One.", value=1)
        samples = (Sample("large", {"number": str(number)}, number) for number in range(COUNT))
        yield with_samples(GaugeMetricFamily("large", "Very many.", labels=["number"]), samples)
        yield GaugeMetricFamily("last", "One.", value=2)


@pytest.mark.long
async def test_the_text_is_that_of_the_library_and_very_many_samples_hold_up_nobody() -> None:
    metrics = CollectorRegistry()
    Counter("counted", "How many.", registry=metrics).inc(3)
    metrics.register(Large())
    expected = generate_latest(metrics)
    texts = []

    async def ask() -> None:
        texts.append(await exposition(metrics))

    with measured_steps() as steps:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
    assert texts == [expected]
    assert expected.count(b"\n") > COUNT
    assert steps.longest_s < MAX_STEP_S
