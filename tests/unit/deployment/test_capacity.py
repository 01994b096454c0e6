"""Capacity: cores, memory, disk and network that follow from a load, computed by hand for simple costs."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.deployment.capacity import MEASURED, CapacityNeed, UnitCosts, capacity_of, limits_of

COSTS = UnitCosts(
    append_batch_s=1e-3,
    append_byte_s=1e-8,
    feed_batch_s=3e-4,
    feed_byte_s=3e-9,
    serve_batch_s=1e-4,
    serve_byte_s=1e-9,
    follow_batch_s=2e-3,
    follow_byte_s=2e-8,
    hub_batch_s=5e-4,
    hub_byte_s=5e-9,
    mirror_batch_s=4e-3,
    mirror_byte_s=4e-8,
    audited_report_s=1e-5,
    mirror_idle_source_s=0.01,
    mirror_idle_partition_s=1e-5,
    broker_bytes=100e6,
    broker_partition_bytes=20e3,
    mirror_bytes=50e6,
    mirror_partition_bytes=5e3,
    audit_bytes=60e6,
    audited_partition_bytes=3e3,
)
NEED = CapacityNeed(
    records_per_s=10_000,
    record_bytes=1_000,
    batch_records=100,
    compression_ratio=2.0,
    datacenters=4,
    partitions=1_000,
    replication_factor=3,
    fan_out=2,
    hub_fan_out=1,
    retention_hours=10,
    hub_retention_hours=100,
)


def test_the_live_cluster_appends_serves_and_follows() -> None:
    live = capacity_of(NEED, COSTS)[0]
    batches, size = 100, 5e6
    appended = batches * 1e-3 + size * 1e-8
    served = 3 * (batches * 1e-4 + size * 1e-9)  # two groups and the mirror
    followed = 2 * (batches * 23e-4 + size * 23e-9)
    assert live.part == "live brokers"
    assert live.count == 4
    assert live.cores == pytest.approx(appended + served + followed)
    assert live.processes == 3  # 0.85 cores at half load need two; each replica needs a broker of its own
    assert live.memory_bytes == pytest.approx(3 * 100e6 + 3_000 * 20e3)
    assert live.disk_bytes == pytest.approx(size * 36_000 * 3 / 0.5)
    assert live.received_bytes_per_s == pytest.approx(15e6)
    assert live.sent_bytes_per_s == pytest.approx(25e6)


def test_the_hub_gets_the_batches_of_all_datacenters() -> None:
    live, hub = capacity_of(NEED, COSTS)[:2]
    batches, size = 400, 20e6
    assert hub.count == 1
    assert hub.cores == pytest.approx(batches * (5e-4 + 2 * 23e-4 + 1e-4) + size * (5e-9 + 2 * 23e-9 + 1e-9))
    assert hub.processes > live.processes
    assert hub.disk_bytes == pytest.approx(4 * 10 * live.disk_bytes)
    assert hub.received_bytes_per_s == pytest.approx(60e6)


def test_mirror_and_audit_grow_with_datacenters_and_partitions() -> None:
    _, _, mirror, audit = capacity_of(NEED, COSTS)
    assert mirror.cores == pytest.approx(4 * (0.4 + 0.2 + 0.01) + 4_000 * 1e-5)
    assert mirror.processes == 5
    assert mirror.memory_bytes == pytest.approx(5 * 50e6 + 4_000 * 5e3)
    assert audit.cores == pytest.approx(4_000 * 4 / 10 * 1e-5)
    assert (audit.processes, audit.memory_bytes) == (1, pytest.approx(60e6 + 4_000 * 3e3))


def test_larger_batches_and_compression_cost_less() -> None:
    def total(need: CapacityNeed) -> float:
        return sum(part.count * part.cores for part in capacity_of(need, MEASURED))

    assert total(replace(NEED, batch_records=1_000)) < total(NEED)
    assert total(replace(NEED, compression_ratio=8.0)) < total(NEED)
    assert total(replace(NEED, fan_out=4)) > total(NEED)


def test_what_no_number_of_machines_carries_is_said() -> None:
    def limits(**changes: Any) -> list[str]:
        need = replace(NEED, **changes)
        return [limit.partition(":")[0] for limit in limits_of(need, capacity_of(need, COSTS))]

    assert limits() == []
    assert limits(partitions=1, records_per_s=1e6) == ["live brokers", "hub brokers", "mirror"]
    assert limits(partitions=1_000_000) == ["live brokers", "hub brokers", "audit"]
