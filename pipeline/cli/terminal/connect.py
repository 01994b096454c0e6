"""How commands find a cluster, and the clock and random numbers that every room is given."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random, SystemRandom
from typing import Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.client.cluster.metadata import TopicView
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import ConfigurationError, NetworkError, NoNodeError
from pipeline.model import HostPort
from pipeline.settings import parse_addresses

Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster, one or more."),
]
ZooKeeper = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT", help="Or the cluster's ZooKeeper, to find its brokers."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

FIRST_CONTACT_S = 5.0
ZOOKEEPER_CONNECT_MS = 5_000


def wall_clock() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def randomness() -> Random:
    """Unpredictable numbers."""
    return SystemRandom()


def addresses(text: str) -> tuple[HostPort, ...]:
    """A bootstrap list from the command line. Raises ConfigurationError."""
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise ConfigurationError("--bootstrap", str(error)) from error


@asynccontextmanager
async def connected(bootstrap: str | None, zookeeper: str | None, client_id: str) -> AsyncIterator[Cluster]:
    """The cluster that the options name, once one of its brokers has answered.

    Raises ConfigurationError unless exactly one of the two is given, NetworkError when no broker answers soon: who
    waits at a terminal wants to hear of a wrong address at once, while services wait for brokers that start late.
    """
    if (bootstrap is None) == (zookeeper is None):
        raise ConfigurationError("--bootstrap", "give it, or --zookeeper, to say which cluster is meant")
    if zookeeper is not None:
        async with open_zookeeper(zookeeper, connect_timeout_ms=ZOOKEEPER_CONNECT_MS) as client:
            discover = from_zookeeper(client)
            brokers: Sequence[HostPort] = ()
            with suppress(NoNodeError):
                brokers = await discover()
            if not brokers:
                raise NetworkError(f"no broker is registered in the ZooKeeper at {zookeeper}")
            async with open_cluster(ClientConfig(client_id=client_id), discover=discover) as cluster:
                await _require_answer(cluster, brokers)
                yield cluster
    elif bootstrap is not None:
        config = ClientConfig(bootstrap=addresses(bootstrap), client_id=client_id)
        async with open_cluster(config) as cluster:
            await _require_answer(cluster, config.bootstrap)
            yield cluster


async def find_topic(cluster: Cluster, name: str) -> TopicView:
    """The topic as of now. Ends the command when there is none of that name."""
    topics = await list_topics(cluster)
    if name not in topics:
        output.fail(
            f"topic {name} does not exist: `pipeline topic create {name}` makes it, `pipeline topic list` shows others"
        )
    return topics[name]


async def _require_answer(cluster: Cluster, brokers: Sequence[HostPort]) -> None:
    try:
        await cluster.refresh(timeout_s=FIRST_CONTACT_S)
    except UNREACHABLE as error:
        reason = str(error.__cause__ or error).rpartition(": ")[2]
        tried = ", ".join(map(str, brokers))
        raise NetworkError(f"no broker answers at {tried} within {FIRST_CONTACT_S:g} s: {reason}") from error
