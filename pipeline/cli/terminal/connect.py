"""Connections of commands: the cluster that options name, and the clock and random numbers for all rooms."""

import re
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random, SystemRandom
from typing import Annotated, Any

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import client_security, zookeeper_security
from pipeline.cli.terminal.profiles import resolve_cluster
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.errors import ConfigurationError, NetworkError, NoNodeError
from pipeline.model import HostPort, TopicPartition
from pipeline.net.security.client_security import OPEN_SECURITY
from pipeline.settings import parse_addresses

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers of the cluster. Default: PIPELINE_BOOTSTRAP, or the profile.",
    ),
]
ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper", metavar="HOST:PORT", help="Find the brokers through this ZooKeeper instead of --bootstrap."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

TIMEOUT_S = 30.0
FIRST_CONTACT_S = 5.0
ZOOKEEPER_CONNECT_MS = 5_000
CLOSED = "closed the connection"
"""What a broker does with a client that speaks another protocol than its listener."""
TOPIC_NAME = re.compile("[a-zA-Z0-9._-]{1,249}")


def wall_clock() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def randomness() -> Random:
    """Unpredictable numbers."""
    return SystemRandom()


def addresses(text: str) -> tuple[HostPort, ...]:
    """Parse a bootstrap list. Raises ConfigurationError."""
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise ConfigurationError("--bootstrap", str(error)) from error


@asynccontextmanager
async def connected(
    bootstrap: str | None, zookeeper: str | None, client_id: str, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[Cluster]:
    """Open the cluster that the options, the environment or the profile name, once one of its brokers has answered.

    `settings`: of ClientConfig.

    Raises ConfigurationError if none or more than one is named, NetworkError when no broker answers soon: a user
    at a terminal learns of a wrong address at once, while services wait for brokers that start late.
    """
    settings = {"client_id": client_id, "security": client_security(), **(settings or {})}
    bootstrap, zookeeper = resolve_cluster(bootstrap, zookeeper)
    if zookeeper is not None:
        from pipeline.coordination.zookeeper import open_zookeeper  # services would take the time and memory, too

        async with open_zookeeper(
            zookeeper, connect_timeout_ms=ZOOKEEPER_CONNECT_MS, security=zookeeper_security()
        ) as client:
            discover = from_zookeeper(client, settings["security"].protocol)
            brokers: Sequence[HostPort] = ()
            with suppress(NoNodeError):
                brokers = await discover()
            if not brokers:
                raise NetworkError(f"no broker is registered in the ZooKeeper at {zookeeper}")
            async with open_cluster(ClientConfig(**settings), discover=discover) as cluster:
                await _require_answer(cluster, brokers)
                yield cluster
    elif bootstrap is not None:
        config = ClientConfig(bootstrap=addresses(bootstrap), **settings)
        async with open_cluster(config) as cluster:
            await _require_answer(cluster, config.bootstrap)
            yield cluster


async def find_topic(cluster: Cluster, name: str) -> TopicMetadata:
    """Return the topic as it is now. Ends the command if there is none of that name."""
    topics = await list_topics(cluster)
    if name not in topics:
        if not TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
            output.exit_with(
                f"no topic can have the name {shlex.quote(name)}: names have 1 to 249 of the characters a-z, A-Z, 0-9, "
                "., _ and -. `pipeline topic list` lists all topics",
                output.EXIT_USAGE,
            )
        output.exit_with(
            f"topic {name} does not exist: `pipeline topic create {quoted_argument(name)}` creates it, "
            "`pipeline topic list` lists all"
        )
    return topics[name]


def quoted_argument(name: str) -> str:
    """Return the name as an argument of a command in a shell, which takes no name that begins with - for an option."""
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)


async def find_offsets_at(
    cluster: Cluster, topic_partitions: Iterable[TopicPartition], position: int
) -> dict[TopicPartition, int]:
    """Return the offset of each partition at a position of ListOffsets: EARLIEST, LATEST, or a time in ms."""
    listed = await list_offsets(cluster, dict.fromkeys(topic_partitions, position), timeout_s=TIMEOUT_S)
    return {topic_partition: found.offset for topic_partition, found in listed.items()}


async def _require_answer(cluster: Cluster, brokers: Sequence[HostPort]) -> None:
    try:
        await cluster.refresh(timeout_s=FIRST_CONTACT_S)
    except UNREACHABLE as error:
        reason = str(error.__cause__ or error).rpartition(": ")[2]
        tried = ", ".join(map(str, brokers))
        if reason.endswith(CLOSED) and client_security() == OPEN_SECURITY:
            reason = f"{reason}. If this is a listener of TLS or SASL, name a file of client settings: --client-config"
        raise NetworkError(f"no broker answers at {tried} within {FIRST_CONTACT_S:g} s: {reason}") from error
