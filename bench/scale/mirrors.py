"""One mirror of several sources, all partitions idle, and then all with records: by the number of sources, and of
partitions.

Every source is a cluster of one of our brokers. Each has ten topics of the same names, which become ten aggregate
replicas. All clusters share a ZooKeeper, each with a chroot of its own.
"""

import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.fitting import Extrapolation, MeasuredRun
from bench.processes import ServerProcess, cpu_s, ended, resident_bytes
from bench.report import Options, Row, Show
from bench.scale.brokers import RunningBroker, running_broker, running_mirror
from bench.scale.trickle import INTERVAL_S, trickling
from pipeline.coordination.embedded import ZooKeeperProcess

TOPICS = 10
FITTED = ((1, 250), (4, 250), (2, 1_000))
CHECKED = (6, 1_000)
PREDICTED = (100, 1_000)
SECONDS = 15.0
"""Time in which idle processes are measured: three refreshes."""
SETTLED_S = 6.0
DEADLINE_S = 300.0
POLL_S = 0.25
TRICKLE = f"a batch for each partition each {INTERVAL_S} s"
FIGURES = {
    "start": ("mirror: CPU until all partitions are taken in", "s", ["constant", "sources", "partitions"]),
    "mirror": ("mirror, idle: CPU", "% of a core", ["constant", "sources", "partitions"]),
    "hub": ("mirror, idle: CPU of the hub's broker", "% of a core", ["constant", "sources", "partitions"]),
    "source": ("mirror, idle: CPU of a source's broker", "% of a core", ["constant", "each"]),
    "requests": ("mirror, idle: requests to the hub", "1/s", ["constant", "sources"]),
    "asked": ("mirror, idle: requests to a source", "1/s", ["constant"]),
    "fed": (f"mirror, {TRICKLE}: CPU", "% of a core", ["constant", "sources", "partitions"]),
    "hub_fed": (f"mirror, {TRICKLE}: CPU of the hub's broker", "% of a core", ["constant", "sources", "partitions"]),
    "source_fed": (f"mirror, {TRICKLE}: CPU of a source's broker", "% of a core", ["constant", "each"]),
    "memory": ("mirror: resident memory", "MB", ["constant", "sources", "partitions"]),
    "hub_memory": ("hub's broker: resident memory", "MB", ["constant", "partitions"]),
    "hub_files": ("hub's broker: open files", "count", ["constant", "partitions"]),
    "status": ("mirror: document of all partitions", "MB", ["partitions"]),
}


def measure(options: Options, show: Show) -> list[Row]:
    """The selected rows."""
    selected = {key: figure for key, figure in FIGURES.items() if options.selects(figure[0])}
    if not selected:
        return []
    sizes = [(sources, options.scaled(each, least=2 * TOPICS)) for sources, each in (*FITTED, CHECKED)]
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory,
        ZooKeeperProcess(Path(directory, "zookeeper")) as zookeeper,
    ):
        found = [_run(zookeeper.connect, Path(directory), sources, each, show) for sources, each in sizes]
    rows = []
    for key, (name, unit, terms) in selected.items():
        *fitted, check = (
            MeasuredRun(name=_label(size), size=_size(*size), value=max(figures[key], 0.01))
            for size, figures in zip(sizes, found, strict=True)
        )
        predicted = _label(PREDICTED), _size(*PREDICTED)
        rows += Extrapolation(name=name, unit=unit, terms=terms, runs=fitted, check=check, predicted=predicted).rows()
    return rows


def _label(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]:,}"


def _size(sources: int, each: int) -> dict[str, float]:
    return {"constant": 1, "sources": sources, "each": each, "partitions": sources * each}


def _run(zookeeper: str, directory: Path, sources: int, each: int, show: Show) -> dict[str, float]:
    """Copy the empty topics of new sources into a new hub, and look at all processes while nothing happens."""
    name = f"{sources}-{each}"
    with ExitStack() as stack:
        hub = stack.enter_context(running_broker(zookeeper, directory / name, f"{name}-hub"))
        brokers = [
            stack.enter_context(running_broker(zookeeper, directory / name, f"{name}-source-{number}"))
            for number in range(sources)
        ]
        for number, broker in enumerate(brokers):
            show(f"mirror of {sources} x {each:,}: topics of source {number + 1}")
            _create_topics(broker.address, each // TOPICS)
        mirror = stack.enter_context(running_mirror(hub, brokers, directory / name))
        show(f"mirror of {sources} x {each:,}: taking in")
        _wait_until_taken_in(mirror, sources * (each // TOPICS) * TOPICS)
        figures = {"start": cpu_s(mirror.pid)}
        show(f"mirror of {sources} x {each:,}: idle")
        time.sleep(SETTLED_S)
        figures |= _idle(mirror, hub, brokers)
        producer = trickling(
            TOPICS, each // TOPICS, [each.address for each in brokers], directory / name / "producer.log"
        )
        with ended(producer):
            producer.launch()
            show(f"mirror of {sources} x {each:,}: {TRICKLE}")
            time.sleep(SETTLED_S)
            rates = _rates(mirror, hub, brokers)
            producer.check()
        _wait_until_taken_in(mirror, sources * (each // TOPICS) * TOPICS)
        return figures | {"fed": rates["mirror"], "hub_fed": rates["hub"], "source_fed": rates["source"]}


def _create_topics(address: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    new = [NewTopic(f"topic-{number}", partitions, 1) for number in range(TOPICS)]
    for future in admin.create_topics(new, operation_timeout=DEADLINE_S).values():
        future.result(DEADLINE_S)


def _wait_until_taken_in(mirror: ServerProcess, partitions: int) -> None:
    """Wait until the mirror shows all partitions as caught up. Raises TimeoutError, RuntimeError if it has ended."""
    mirror.wait_for_port()
    deadline = time.monotonic() + DEADLINE_S
    url = f"http://127.0.0.1:{mirror.port}/v1/status?partitions=troubled"
    caught_up = 0
    while time.monotonic() < deadline:
        mirror.check()
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            caught_up = sum(source["states"]["caught_up"] for source in json.load(answer)["sources"])
        if caught_up == partitions:
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"{caught_up:,} of {partitions:,} partitions taken in after {DEADLINE_S:.0f} s")


def _rates(mirror: ServerProcess, hub: RunningBroker, brokers: Sequence[RunningBroker]) -> dict[str, float]:
    """Measure for some seconds. Return CPU in percent of a core, and requests per second."""

    def state() -> dict[str, float]:
        return {
            "mirror": 100 * cpu_s(mirror.pid),
            "hub": 100 * cpu_s(hub.process.pid),
            "source": 100 * sum(cpu_s(each.process.pid) for each in brokers) / len(brokers),
            "requests": hub.requests(),
            "asked": sum(each.requests() for each in brokers) / len(brokers),
        }

    before, began = state(), time.monotonic()
    time.sleep(SECONDS)
    after, elapsed_s = state(), time.monotonic() - began
    return {key: (after[key] - before[key]) / elapsed_s for key in before}


def _idle(mirror: ServerProcess, hub: RunningBroker, brokers: Sequence[RunningBroker]) -> dict[str, float]:
    rates = _rates(mirror, hub, brokers)
    with urllib.request.urlopen(f"http://127.0.0.1:{mirror.port}/v1/status", timeout=DEADLINE_S) as answer:
        status_mb = len(answer.read()) / 1e6
    memory = {"memory": mirror.pid, "hub_memory": hub.process.pid}
    return {
        **rates,
        **{key: resident_bytes(pid) / 1e6 for key, pid in memory.items()},
        "status": status_mb,
        "hub_files": _open_files(hub.process.pid),
    }


def _open_files(pid: int) -> float:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
