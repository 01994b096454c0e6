"""Capacity of a company: cores, memory, disk and network of brokers, mirror and audit, from what producers send. Pure.

Costs are linear in batches and bytes, as the batch is the unit of all work. `make bench-capacity` measures them, and
compares predictions with runs that the costs were not fitted to (docs/deploy/capacity.md).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

AUDITED_TIERS = 4
"""Producers, live brokers, the hub's brokers, loads."""
MAX_BROKER_REPLICAS = 262_144
"""Half of the files that a broker may open under the units of the packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """CPU seconds and bytes of one unit of work."""

    append_batch_s: float
    """Leader: a batch that a producer sends, in a request of its own."""
    append_byte_s: float
    """Leader: each of its bytes, as compressed."""
    feed_batch_s: float
    """Leader: a batch for one follower, with what its producer waits for."""
    feed_byte_s: float
    serve_batch_s: float
    """Leader: a batch for one consumer or mirror."""
    serve_byte_s: float
    follow_batch_s: float
    """Follower: a batch."""
    follow_byte_s: float
    hub_batch_s: float
    """Leader in the hub: a batch that the mirror sends."""
    hub_byte_s: float
    mirror_batch_s: float
    """Mirror: a batch, without what it costs the brokers."""
    mirror_byte_s: float
    audited_report_s: float
    """Audit: a partition at one tier in one report that all of it changed since."""
    mirror_idle_source_s: float
    """Mirror: CPU seconds per second for each source without new records."""
    mirror_idle_partition_s: float
    """Mirror: CPU seconds per second for each partition without new records."""
    broker_bytes: float
    """Memory of a broker without partitions."""
    broker_partition_bytes: float
    """Memory of a broker for each of its replicas."""
    mirror_bytes: float
    mirror_partition_bytes: float
    audit_bytes: float
    audited_partition_bytes: float
    """Memory of the audit for each partition of a live cluster, at all tiers."""


MEASURED = UnitCosts(
    append_batch_s=420e-6,
    append_byte_s=1.60e-9,
    feed_batch_s=450e-6,
    feed_byte_s=1.08e-9,
    serve_batch_s=104e-6,
    serve_byte_s=0.0,
    follow_batch_s=543e-6,
    follow_byte_s=1.56e-9,
    hub_batch_s=372e-6,
    hub_byte_s=1.10e-9,
    mirror_batch_s=903e-6,
    mirror_byte_s=1.36e-9,
    audited_report_s=15e-6,
    mirror_idle_source_s=3.0e-3,
    mirror_idle_partition_s=16e-6,
    broker_bytes=83e6,
    broker_partition_bytes=10.6e3,
    mirror_bytes=73e6,
    mirror_partition_bytes=9.7e3,
    audit_bytes=56e6,
    audited_partition_bytes=1.9e3,
)
"""Costs on the machine of docs/deploy/capacity.md, by `make bench-capacity` and `make bench-scale`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityNeed:
    """Load of one live datacenter on average in its busiest hour, and the shape of the company."""

    records_per_s: float
    record_bytes: float
    batch_records: float
    """Records in a batch."""
    compression_ratio: float
    """Bytes of records divided by bytes of batches: 1 without compression."""
    datacenters: int
    partitions: int
    """Partitions of a live datacenter."""
    replication_factor: int
    fan_out: float
    """Consumer groups that read everything in a live datacenter, without the mirror."""
    hub_fan_out: float
    """Consumers and loads that read everything in the hub."""
    retention_hours: float
    hub_retention_hours: float
    audit_interval_s: float = 10.0
    busy_share: float = 0.5
    """Part of a core and of a disk that is used: the rest is for peaks, catching up, and brokers that are away."""

    @property
    def batches_per_s(self) -> float:
        """Batches of a live datacenter in a second."""
        return self.records_per_s / self.batch_records

    @property
    def bytes_per_s(self) -> float:
        """Bytes of a live datacenter in a second, as batches hold them."""
        return self.records_per_s * self.record_bytes / self.compression_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCapacity:
    """Need of one part of the company: a cluster, or a service."""

    part: str
    count: int
    """How often the company has it."""
    cores: float
    """CPU seconds per second of all of its processes."""
    processes: int
    """Number of processes, each of which uses one core at most."""
    memory_bytes: float
    """Memory of all of its processes, without the page cache."""
    disk_bytes: float
    received_bytes_per_s: float
    sent_bytes_per_s: float


def capacity_of(need: CapacityNeed, costs: UnitCosts) -> Sequence[PartCapacity]:
    """Return the parts of the company, the live cluster first."""
    batches, size = need.batches_per_s, need.bytes_per_s
    count = need.datacenters
    partitions = need.partitions * count
    mirror_cores = (
        count * (batches * costs.mirror_batch_s + size * costs.mirror_byte_s + costs.mirror_idle_source_s)
        + partitions * costs.mirror_idle_partition_s
    )
    reports = partitions * AUDITED_TIERS / need.audit_interval_s
    mirrors, audits = _processes(mirror_cores, need), 1
    return (
        _cluster(need, costs, is_hub=False),
        _cluster(need, costs, is_hub=True),
        PartCapacity(
            part="mirror",
            count=1,
            cores=mirror_cores,
            processes=mirrors,
            memory_bytes=mirrors * costs.mirror_bytes + partitions * costs.mirror_partition_bytes,
            disk_bytes=0,
            received_bytes_per_s=count * size,
            sent_bytes_per_s=count * size,
        ),
        PartCapacity(
            part="audit",
            count=1,
            cores=reports * costs.audited_report_s,
            processes=audits,
            memory_bytes=audits * costs.audit_bytes + partitions * costs.audited_partition_bytes,
            disk_bytes=0,
            received_bytes_per_s=0,
            sent_bytes_per_s=0,
        ),
    )


def limits_of(need: CapacityNeed, parts: Sequence[PartCapacity]) -> Iterator[str]:
    """Yield what keeps the parts of `capacity_of` from doing their work, however many machines there are."""
    live, hub, mirror, audit = parts
    of_all = need.partitions * need.datacenters
    for part, partitions in ((live, need.partitions), (hub, of_all), (mirror, of_all)):
        if part.processes > max(partitions, need.replication_factor):
            yield (
                f"{part.part}: the work of {partitions:,} partitions cannot be shared by {part.processes:,} processes; "
                "have more partitions, or larger batches"
            )
    for part, partitions in ((live, need.partitions), (hub, of_all)):
        brokers = math.ceil(partitions * need.replication_factor / MAX_BROKER_REPLICAS)
        if brokers > part.processes:
            yield (
                f"{part.part}: {partitions:,} partitions need {brokers:,} processes, as a broker opens a file for each "
                f"replica and has {MAX_BROKER_REPLICAS:,} at most"
            )
    if audit.cores > need.busy_share:
        yield (
            f"audit: its work takes {audit.cores:.2f} cores, and it is one process, which has {need.busy_share} beside "
            "room for peaks: have fewer partitions, or several hubs with an audit each"
        )


def _cluster(need: CapacityNeed, costs: UnitCosts, *, is_hub: bool) -> PartCapacity:
    """Return the brokers of a live cluster, or of the hub, which gets the batches of all datacenters."""
    times = need.datacenters if is_hub else 1
    fan_out = need.hub_fan_out if is_hub else need.fan_out + 1
    hours = need.hub_retention_hours if is_hub else need.retention_hours
    followers = need.replication_factor - 1
    batches, size = times * need.batches_per_s, times * need.bytes_per_s
    append_batch_s, append_byte_s = (
        (costs.hub_batch_s, costs.hub_byte_s) if is_hub else (costs.append_batch_s, costs.append_byte_s)
    )
    cores = batches * (
        append_batch_s + followers * (costs.feed_batch_s + costs.follow_batch_s) + fan_out * costs.serve_batch_s
    ) + size * (append_byte_s + followers * (costs.feed_byte_s + costs.follow_byte_s) + fan_out * costs.serve_byte_s)
    processes = max(need.replication_factor, _processes(cores, need))
    replicas = times * need.partitions * need.replication_factor
    return PartCapacity(
        part="hub brokers" if is_hub else "live brokers",
        count=1 if is_hub else need.datacenters,
        cores=cores,
        processes=processes,
        memory_bytes=processes * costs.broker_bytes + replicas * costs.broker_partition_bytes,
        disk_bytes=size * hours * 3600 * need.replication_factor / need.busy_share,
        received_bytes_per_s=size * need.replication_factor,
        sent_bytes_per_s=size * (fan_out + followers),
    )


def _processes(cores: float, need: CapacityNeed) -> int:
    return max(1, math.ceil(cores / need.busy_share))
