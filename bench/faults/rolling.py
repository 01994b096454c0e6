"""100 topics of 20 partitions with three replicas on five brokers of ours: creation, and a restart of every broker."""

import tempfile
from pathlib import Path

from bench.report import Options, Row, Show, Target
from tests.support.cluster.rolling import restart_all
from tests.support.cluster.systems import local_places, our_cluster

CREATION = "creation of 100 topics of 20 partitions on five brokers"
WAIT = "rolling restart of five brokers with 2,000 partitions: longest wait for an acknowledgement"
BROKERS = 5
TOPICS = 100
PARTITIONS = 20
REPLICAS = 3
RECORDS_PER_S = 250
CREATION_S = Target(bound=10, at_least=False, absolute=True)


def measure(options: Options, show: Show) -> list[Row]:
    """Both rows; an error that reached the client fails the second."""
    if not (options.selects(CREATION) or options.selects(WAIT)):
        return []
    show("rolling restart")
    topics = options.scaled(TOPICS)
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-faults-") as directory,
        our_cluster(Path(directory), local_places(BROKERS), {}) as cluster,
    ):
        cluster.start()
        try:
            done = restart_all(
                cluster, topics=topics, partitions=PARTITIONS, replicas=REPLICAS, records_per_s=RECORDS_PER_S
            )
        except (TimeoutError, RuntimeError) as error:
            return [Row(name=WAIT, unit="s", error=str(error))]
    return [
        Row(name=CREATION, unit="s", ours=done.creation_s, target=CREATION_S),
        Row(name=WAIT, unit="s", ours=done.verdict.longest_wait_s, error="; ".join(done.verdict.faults)),
    ]
