import pytest

from pipeline.broker.replication.replication_quota import ReplicationThrottle, is_throttled
from pipeline.model import MAX_INT64, BrokerId


def test_a_replica_that_moves_more_than_the_rate_pauses() -> None:
    throttle = ReplicationThrottle(1_000_000)
    throttle.count(5_000_000, 0.0)
    assert throttle.pause_s(0.0) == pytest.approx(4.0)
    assert throttle.pause_s(4.0) == 0


def test_the_rate_holds_over_time() -> None:
    throttle = ReplicationThrottle(1_000_000)
    now_s, moved = 0.0, 0
    while now_s < 60:
        throttle.count(300_000, now_s)
        moved += 300_000
        now_s += 0.01 + throttle.pause_s(now_s)
    assert moved / now_s == pytest.approx(1_000_000, rel=0.05)


def test_a_new_rate_counts_at_once() -> None:
    throttle = ReplicationThrottle(1_000)
    throttle.count(100_000, 0.0)
    throttle.bytes_per_s = 100_000
    assert throttle.pause_s(0.0) < 2
    throttle.bytes_per_s = MAX_INT64
    assert throttle.pause_s(0.0) == 0
    assert not throttle.is_limited


def test_a_rate_of_nothing_stops_all() -> None:
    throttle = ReplicationThrottle(0)
    throttle.count(100_000, 0.0)
    assert throttle.pause_s(0.0) >= 3600


@pytest.mark.parametrize(
    ("replicas", "partition", "broker", "expected"),
    [
        ("", 0, 1, False),
        ("*", 3, 1, True),
        ("0:1,0:2,1:2", 0, 1, True),
        ("0:1,0:2,1:2", 1, 2, True),
        ("0:1,0:2,1:2", 1, 1, False),
        ("10:1", 0, 1, False),
        ("0:1", 0, 11, False),
    ],
)
def test_replicas_named_by_the_setting_are_throttled(
    replicas: str, partition: int, broker: int, expected: bool
) -> None:
    assert is_throttled(replicas, partition, BrokerId(broker)) == expected
