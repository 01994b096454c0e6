"""Capacity: CPU seconds by batch and byte at brokers and mirror, and the error of the model for runs of another kind.

A live cluster of two brokers, of which the first leads everything and the second follows, and a hub of one broker with
its mirror. Each fitted run has batches of one size, and no reader, a follower, or a follower and one other reader; the
runs that check the model have a size of their own, and a follower, a mirror and a consumer at once. Batches are made
beforehand and sent one to a request, at a steady rate.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean

import trio

from bench.fitting import MAX_ERROR_PERCENT, Fitted, MeasuredRun, fit
from bench.page import DEPLOY, machine, write_part
from bench.processes import ServerProcess, cpu_s
from bench.report import Options, Row, Show, Target, markdown
from bench.scale.brokers import RunningBroker, running_broker, running_mirror
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.batch import iterate_headers
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

PARTITIONS = 4
SIZES = ((4 << 10, 200), (64 << 10, 200), (512 << 10, 60))
"""Bytes of a batch, and batches per second: a rate at which each batch is served before the next one comes."""
CHECKED = ((24 << 10, 200), (160 << 10, 120))
SECONDS = 10
"""Length of a run."""
KINDS = ("alone", "read", "replicated", "mirrored")
ROUNDS = 3
"""Runs of each kind, whose mean counts: CPU times of the same work differ by a third on a shared machine."""
SETTLED_S = 1.0
IDLE_S = 5.0
DEADLINE_S = 240.0
POLL_S = 0.02
LEAST_S = 0.01
"""Resolution of CPU times in /proc."""
TERMS = {
    "leader": ("append_batch", "append_byte", "feed_batch", "feed_byte", "serve_batch", "serve_byte"),
    "follower": ("follow_batch", "follow_byte"),
    "hub": ("hub_batch", "hub_byte"),
    "mirror": ("mirror_batch", "mirror_byte"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """Batches of one size to one topic, and what reads them."""

    batch_bytes: int
    rate: int
    batches: int
    is_replicated: bool = False
    is_mirrored: bool = False
    is_read: bool = False

    @property
    def name(self) -> str:
        readers = {"a follower": self.is_replicated, "a mirror": self.is_mirrored, "a consumer": self.is_read}
        found = " and ".join(name for name, is_there in readers.items() if is_there) or "no reader"
        return f"{self.batches:,} batches of {self.batch_bytes >> 10} KB, {found}"

    @property
    def size(self) -> Mapping[str, float]:
        """Amounts of all terms."""
        total = self.batches * self.batch_bytes
        readers = self.is_mirrored + self.is_read
        amounts = {"append": 1, "feed": self.is_replicated, "serve": readers, "follow": 1, "hub": 1, "mirror": 1}
        return {f"{name}_batch": times * self.batches for name, times in amounts.items()} | {
            f"{name}_byte": times * total for name, times in amounts.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """CPU seconds of the processes in one run."""

    workload: _Workload
    leader: float
    follower: float
    mirror: float
    hub: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """All processes."""

    leader: RunningBroker
    follower: RunningBroker
    hub: RunningBroker
    mirror: ServerProcess

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far."""
        brokers = {"leader": self.leader, "follower": self.follower, "hub": self.hub}
        return {name: cpu_s(each.process.pid) for name, each in brokers.items()} | {"mirror": cpu_s(self.mirror.pid)}


def measure(options: Options, show: Show) -> list[Row]:
    """The costs, and how well they predict runs of another kind."""
    rounds = options.rounds_or(ROUNDS)
    fitted = [_workload(options, *size, kind) for size in SIZES for kind in KINDS]
    checked = [replace(_workload(options, *size, "mirrored"), is_read=True) for size in CHECKED]
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        zookeeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper"))
        leader, follower = (
            stack.enter_context(running_broker(zookeeper.connect, directory, "live", number)) for number in (1, 2)
        )
        hub = stack.enter_context(running_broker(zookeeper.connect, directory, "hub"))
        mirror = stack.enter_context(running_mirror(hub, [leader], directory))
        site = _Site(leader=leader, follower=follower, hub=hub, mirror=mirror)
        mirror.wait_for_port()
        workloads = [*fitted, *checked] * rounds
        Random(1).shuffle(workloads)  # a machine that is slower for a while slows runs of both kinds
        costs = trio.run(_run_all, site, workloads, show)
    return _rows(_means_of(fitted, costs), _means_of(checked, costs))


def _means_of(workloads: Sequence[_Workload], costs: Sequence[_Cost]) -> list[_Cost]:
    """Return the mean cost of each workload over all of its runs."""
    means = []
    for workload in workloads:
        runs = [each for each in costs if each.workload == workload]
        means.append(_Cost(workload=workload, **{role: fmean(getattr(run, role) for run in runs) for role in TERMS}))
    return means


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/deploy/capacity.md."""
    text = f"Measured on {machine()}; {options.scale:.0%} of the batches.\n\n{markdown(rows)}"
    write_part("capacity", text, path=DEPLOY / "capacity.md")


def _workload(options: Options, batch_bytes: int, rate: int, kind: str) -> _Workload:
    return _Workload(
        batch_bytes=batch_bytes,
        rate=rate,
        batches=options.scaled(rate * SECONDS),
        is_replicated=kind != "alone",
        is_mirrored=kind == "mirrored",
        is_read=kind == "read",
    )


def _rows(fitted: Sequence[_Cost], checked: Sequence[_Cost]) -> list[Row]:
    mirrored = [each for each in fitted if each.workload.is_mirrored]
    runs = {
        "leader": [_run_of(each.workload, each.leader) for each in fitted],
        "follower": [_run_of(each.workload, each.follower) for each in fitted if each.workload.is_replicated],
        "hub": [_run_of(each.workload, each.hub) for each in mirrored],
        "mirror": [_run_of(each.workload, each.mirror) for each in mirrored],
    }
    models = {role: fit(found, TERMS[role]) for role, found in runs.items()}
    rows = []
    for role, model in models.items():
        for term in TERMS[role]:
            unit, factor = ("us", 1e6) if term.endswith("batch") else ("s/GB", 1e9)
            rows.append(
                Row(name=f"CPU, {term.replace('_', ' by ')}", unit=unit, ours=factor * model.coefficients[term])
            )
        rows += [_beside(f"CPU of the {role}", run, model) for run in runs[role]]
    for cost in checked:
        parts = {role: (model, _run_of(cost.workload, getattr(cost, role))) for role, model in models.items()}
        for part, (model, run) in parts.items():
            rows.append(_beside(f"CPU of the {part}, not fitted", run, model))
            error = model.error_percent(run)
            rows.append(
                Row(name=f"CPU of the {part}: error of the model, {run.name}", unit="%", ours=error, target=BOUND)
            )
        total = sum(run.value for _, run in parts.values())
        predicted = sum(model.predict(run.size) for model, run in parts.values())
        error = 100 * abs(predicted - total) / total
        rows.append(
            Row(
                name=f"CPU of all together: error of the model, {cost.workload.name}",
                unit="%",
                ours=error,
                target=BOUND,
            )
        )
    return rows


BOUND = Target(bound=MAX_ERROR_PERCENT, at_least=False, absolute=True)


def _run_of(workload: _Workload, value: float) -> MeasuredRun:
    return MeasuredRun(name=workload.name, size=workload.size, value=max(value, LEAST_S))


def _beside(name: str, run: MeasuredRun, model: Fitted) -> Row:
    return Row(name=f"{name}, {run.name}", unit="s", ours=run.value, peer="model", theirs=model.predict(run.size))


async def _run_all(site: _Site, workloads: Sequence[_Workload], show: Show) -> list[_Cost]:
    live, hub = (
        ClientConfig(bootstrap=(HostPort("127.0.0.1", each.process.port),), client_id="bench-capacity")
        for each in (site.leader, site.hub)
    )
    costs = []
    await trio.sleep(SETTLED_S)
    idle = await _idle(site)
    async with open_cluster(live) as live_cluster, open_cluster(hub) as hub_cluster:
        for number, workload in enumerate(workloads):
            show(workload.name)
            topic = f"{'topic' if workload.is_mirrored else 'plain'}-{number}"
            await trio.to_thread.run_sync(_create, site.leader, topic, workload.is_replicated)
            await live_cluster.topic(topic)
            if workload.is_mirrored:
                await _until_there(hub_cluster, topic)
            await trio.sleep(SETTLED_S)
            costs.append(await _run(site, live_cluster, hub_cluster, topic, workload, idle))
    return costs


async def _idle(site: _Site) -> dict[str, float]:
    """Return the CPU seconds per second of processes that have nothing to do."""
    before, began = site.cpu(), time.monotonic()
    await trio.sleep(IDLE_S)
    return {name: (after - before[name]) / (time.monotonic() - began) for name, after in site.cpu().items()}


def _create(broker: RunningBroker, topic: str, is_replicated: bool) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    replicas = [[1, 2] if is_replicated else [1]] * PARTITIONS
    new = NewTopic(topic, PARTITIONS, replica_assignment=replicas)
    for future in admin.create_topics([new], operation_timeout=DEADLINE_S).values():
        future.result(DEADLINE_S)


async def _until_there(hub: Cluster, topic: str) -> None:
    with trio.fail_after(DEADLINE_S):
        while True:
            found = (await hub.fetch_all_topics()).topics.get(topic)
            if found is not None and len(found.led_partitions) == PARTITIONS:
                break
            await trio.sleep(POLL_S)
    await hub.topic(topic)


async def _run(
    site: _Site, live: Cluster, hub: Cluster, topic: str, workload: _Workload, idle: Mapping[str, float]
) -> _Cost:
    """Return the CPU seconds of a workload, without those that the processes would have taken idle."""
    batch, records = _batch(workload.batch_bytes)
    each = workload.batches // PARTITIONS
    ends = {TopicPartition(topic, number): each * records for number in range(PARTITIONS)}
    before, began = site.cpu(), time.monotonic()
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number, partition in enumerate(ends):
                first_at = trio.current_time() + number / workload.rate
                nursery.start_soon(_send, live, partition, batch, each, first_at, PARTITIONS / workload.rate)
            if workload.is_read:
                nursery.start_soon(_read, live, ends)
            if workload.is_mirrored:
                nursery.start_soon(_wait_for_ends, hub, ends)
    after, elapsed_s = site.cpu(), time.monotonic() - began
    spent = {name: after[name] - before[name] - idle[name] * elapsed_s for name in before}
    return _Cost(workload=workload, **spent)


def _batch(size: int) -> tuple[bytes, int]:
    """Return a batch of records that nobody can compress, and their number."""
    rng = Random(size)
    builder = BatchBuilder(Codec.NONE, size)
    while builder.append(None, rng.randbytes(1_000), (), 1_700_000_000_000):
        pass
    return bytes(builder.build()), builder.record_count


async def _send(
    cluster: Cluster, partition: TopicPartition, batch: bytes, count: int, first_at: float, interval_s: float
) -> None:
    for number in range(count):
        await trio.sleep_until(first_at + number * interval_s)
        found = await raw_produce(cluster, {partition: batch}, keep_offsets=False, timeout_s=DEADLINE_S)
        error = found[partition].error
        if error is not None:
            raise error


async def _read(cluster: Cluster, ends: dict[TopicPartition, int]) -> None:
    """Read the batches as they come."""
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign(dict.fromkeys(ends, 0))
        left = dict(ends)
        while any(left.values()):
            for found in await consumer.poll_batches(1.0):
                left[found.topic_partition] -= sum(header.record_count for _, header in iterate_headers(found.data))


async def _wait_for_ends(cluster: Cluster, ends: dict[TopicPartition, int]) -> None:
    while True:
        listed = await list_offsets(cluster, dict.fromkeys(ends, LATEST), timeout_s=DEADLINE_S)
        if all(listed[each].offset == end for each, end in ends.items()):
            break
        await trio.sleep(0.2)
