"""A mirror over a long way: 100 ms there and back, and one of 1,000 packets is lost."""

from pathlib import Path

import pytest

from tests.support.cluster.wan import Way
from tests.support.cluster.wan_mirror import Asked, measure

RATE = 12_500_000.0
"""Bytes per second of a link of 100 Mbit/s."""
DELAY_S = 0.05
LONG_WAY = Way(bytes_per_s=RATE, delay_s=DELAY_S, loss=0.001, queue_bytes=int(RATE * 2 * DELAY_S))
LEAST_SHARE = 0.8


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_flow_keeps_four_fifths_of_a_link_with_delay_and_loss(tmp_path: Path) -> None:
    found = measure(Asked(way=LONG_WAY, partitions=64, megabytes=200), tmp_path)
    print(f"{found.mirror / 1e6:.1f} MB/s of {found.link / 1e6:.1f} MB/s: {found.mirror / found.link:.2f}; {found}")
    assert all(counts.lost for counts in found.counts), "no packet was lost"
    assert found.is_equal
    assert not found.unknown and not found.false_ends
    assert found.mirror >= LEAST_SHARE * found.link
