"""Many topics are made, and every broker is restarted in turn, while a client writes and reads all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from tests.support.cluster.client import Asked, Verdict
from tests.support.cluster.faults import running_client
from tests.support.cluster.observation import OFFSETS_TOPIC, Observer
from tests.support.cluster.systems import PROGRAM, ClusterProcesses

DEADLINE_S = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingRestart:
    """What was measured."""

    creation_s: float
    """From the request until all partitions are led and in sync."""
    verdict: Verdict


def restart_all(
    cluster: ClusterProcesses,
    *,
    topics: int,
    partitions: int,
    replicas: int,
    records_per_s: int,
    programs: Sequence[Sequence[str]] = (PROGRAM,),
) -> RollingRestart:
    """Every broker gets SIGTERM, and the next one when all replicas are in sync again. Raises TimeoutError.

    `programs`: the program that runs, then those with which all brokers are restarted, in turn.
    """
    observer = Observer(cluster)
    names = [f"rolling-{number}" for number in range(topics)]
    creation_s = observer.create_topics(names, partitions, replicas)
    asked = Asked(
        bootstrap=cluster.bootstrap, topics=names, partitions=partitions, group="rolling", records_per_s=records_per_s
    )
    with running_client(asked) as client:
        client.wait_until_steady()
        rounds = list(pairwise(programs)) or [(programs[0], programs[0])]
        for (former, program), node in product(rounds, cluster.nodes.values()):
            node.stop()
            node.replace_program(former, program)
            node.launch()
            node.wait_for_port()
            observer.wait_until_in_sync([*names, OFFSETS_TOPIC], DEADLINE_S)
        return RollingRestart(creation_s=creation_s, verdict=client.finish())
