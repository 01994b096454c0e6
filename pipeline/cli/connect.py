"""How commands find a cluster, and the clock and random numbers that every room is given."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import Annotated

import typer

from pipeline.client.cluster import Cluster, open_cluster
from pipeline.client.config import ClientConfig
from pipeline.client.discovery import from_zookeeper
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.settings import parse_addresses

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers to begin with.")
]
ZooKeeper = Annotated[
    str | None, typer.Option("--zookeeper", metavar="HOST:PORT", help="Or the ZooKeeper to find them through.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


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
    """The cluster that the options name. Raises ConfigurationError unless exactly one of the two is given."""
    if (bootstrap is None) == (zookeeper is None):
        raise ConfigurationError("--bootstrap", "give it, or --zookeeper, to say which cluster is meant")
    if zookeeper is not None:
        async with (
            open_zookeeper(zookeeper) as client,
            open_cluster(ClientConfig(client_id=client_id), discover=from_zookeeper(client)) as cluster,
        ):
            yield cluster
    elif bootstrap is not None:
        config = ClientConfig(bootstrap=addresses(bootstrap), client_id=client_id)
        async with open_cluster(config) as cluster:
            yield cluster
