"""Sketches of latencies: as exact as they say, equal however they were put together."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.counting.latency import (
    ACCURACY,
    MAX_LATENCY_MS,
    LatencySketch,
    latency_keys,
    max_key,
    merged,
    quantiles_ms,
)

latencies = st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(1, 10_000)), max_size=50)


def sketch_of(pairs: list[tuple[int, int]]) -> LatencySketch:
    sketch = LatencySketch()
    if pairs:
        sketch.add(*zip(*pairs, strict=True))
    return sketch


@pytest.mark.parametrize("share", [0, 0.5, 0.95, 0.99, 1])
def test_quantiles_are_as_exact_as_promised(share: float) -> None:
    rng = random.Random(5)
    known = sorted(round(rng.lognormvariate(5, 2)) + 1 for _ in range(5000))
    found = sketch_of([(latency, 1) for latency in known]).quantile_ms(share)
    assert found == pytest.approx(known[int(share * (len(known) - 1))], rel=ACCURACY * 1.001)


@given(latencies, st.integers(0, 50))
def test_parts_in_any_order_make_the_whole(pairs: list[tuple[int, int]], split: int) -> None:
    whole = sketch_of(pairs)
    parts = [sketch_of(pairs[split:]).buckets(), sketch_of(pairs[:split][::-1]).buckets()]
    assert merged(parts).buckets() == merged(reversed(parts)).buckets() == whole.buckets()
    assert whole.records == sum(records for _, records in pairs)


@given(st.integers(1, MAX_LATENCY_MS))
def test_keys_are_those_of_the_library(latency: int) -> None:
    from pipeline.audit.counting.latency import _mapping

    (key,) = latency_keys([latency]).tolist()
    assert 0 <= key <= max_key()
    assert _mapping().value(key) == pytest.approx(latency, rel=ACCURACY * 1.001)
    assert key == _mapping().key(_mapping().value(key))


def test_a_weight_counts_as_so_many_records() -> None:
    sketch = LatencySketch()
    sketch.add(np.array([10, 1000, 10]), np.array([50, 1, 49]))
    assert sketch.buckets() == tuple(zip(latency_keys([10, 1000]).tolist(), [99, 1], strict=True))
    assert sketch.quantile_ms(0.95) == pytest.approx(10, rel=ACCURACY)


def test_foreign_buckets_are_bounded() -> None:
    sketch = merged([((-5, 3), (2**62, 4), (7, -9), (8, 0))])
    assert sketch.buckets() == ((0, 3), (max_key(), 4))


def test_nothing_has_no_quantiles() -> None:
    assert quantiles_ms([]) == {}
    assert quantiles_ms([()]) == {}
    assert LatencySketch().buckets() == ()
