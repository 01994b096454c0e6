"""Both clusters, as the clients of `bench.broker` see them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.broker.servers import BENCH_SETTINGS, Server
from bench.report import Show
from tests.support.cluster.observation import Observer
from tests.support.cluster.systems import SYSTEMS, ClusterProcesses, local_places

BROKERS = 3


@dataclass(slots=True, kw_only=True)
class ClusterServer(Server):
    """All brokers of one system; `process` is the first of them."""

    cluster: ClusterProcesses
    observer: Observer

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def cpu_s(self) -> float:
        return self.cluster.cpu_s


@contextmanager
def running_clusters(directory: Path, show: Show) -> Iterator[list[ClusterServer]]:
    """Ours and Apache Kafka."""
    with ExitStack() as stack:
        servers = []
        for name, open_cluster in SYSTEMS.items():
            show(f"starting {name}")
            below = directory / name.replace(" ", "-")
            cluster = stack.enter_context(open_cluster(below, local_places(BROKERS), BENCH_SETTINGS))
            cluster.start()
            servers.append(
                ClusterServer(
                    name=name,
                    process=cluster.nodes[1],
                    directory=below,
                    replication_factor=BROKERS,
                    cluster=cluster,
                    observer=Observer(cluster),
                )
            )
        yield servers
