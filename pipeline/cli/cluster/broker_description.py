"""The report of `pipeline broker describe`, as plain values for JSON and for people."""

from typing import Any

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.brokers import LogDir, describe_cluster, describe_log_dirs, describe_versions
from pipeline.client.admin.resource_configs import ConfigResource, describe_configs
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.errors import NetworkError
from pipeline.model import BrokerEndpoint
from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.describe_configs import ConfigSource, ResourceType

TIMEOUT_S = 30.0
OWN = frozenset({"broker.id", "node.id", "listeners", "advertised.listeners", "log.dirs", "log.dir"})
"""Settings that always differ between brokers, and are shown above."""


async def gather_brokers(bootstrap: str | None, zookeeper: str | None, broker_id: int | None) -> dict[str, Any]:
    """Return the cluster and its brokers, or one broker. Raises NetworkError if that broker is not alive."""
    async with connected(bootstrap, zookeeper, "pipeline-broker") as cluster:
        await cluster.refresh(timeout_s=TIMEOUT_S)
        found = await describe_cluster(cluster, timeout_s=TIMEOUT_S)
        brokers = [broker for broker in found.brokers if broker_id in {None, broker.id}]
        if not brokers:
            raise NetworkError(f"broker {broker_id} is not alive: `pipeline broker list` lists the live brokers")
        return {
            "cluster_id": found.cluster_id,
            "controller": found.controller,
            "brokers": [await _describe(cluster, broker) for broker in brokers],
        }


async def _describe(cluster: Cluster, broker: BrokerEndpoint) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": broker.id, "host": broker.address.host, "port": broker.address.port, "rack": broker.rack,
    }  # fmt: skip
    resource = ConfigResource(ResourceType.BROKER, str(broker.id))
    try:
        log_dirs = await describe_log_dirs(cluster, broker.id, timeout_s=TIMEOUT_S)
        configs = await describe_configs(cluster, [resource], timeout_s=TIMEOUT_S)
        versions = await describe_versions(cluster, broker.id, timeout_s=TIMEOUT_S)
    except (*UNREACHABLE, KafkaError) as error:
        return {**told, "error": str(error)}
    return {
        **told,
        "error": None,
        "log_dirs": [_log_dir(log_dir) for log_dir in log_dirs],
        "versions": {_api_name(key): list(versions[key]) for key in sorted(versions)},
        "settings": {
            name: {"value": entry.value, "source": entry.source.name.lower()}
            for name, entry in sorted(configs[resource].items())
            if entry.source is not ConfigSource.DEFAULT
        },
    }


def _log_dir(log_dir: LogDir) -> dict[str, Any]:
    return {
        "path": log_dir.path,
        "error": None if log_dir.error is None else log_dir.error.name,
        "bytes": sum(log_dir.partitions.values()),
        "partitions": len(log_dir.partitions),
        "disk_bytes": log_dir.total_bytes,
        "disk_usable_bytes": log_dir.usable_bytes,
        "lack_of_room": log_dir.lack_of_room or None,
    }


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).name
    except ValueError:
        return str(key)


def troubles(description: dict[str, Any]) -> list[str]:
    """Return the brokers that do not answer, and the log dirs that failed or are full."""
    found = []
    for broker in description["brokers"]:
        if broker["error"] is not None:
            found.append(f"broker {broker['id']} does not answer: {broker['error']}")
            continue
        found += [
            f"log dir {log_dir['path']} of broker {broker['id']} failed: {log_dir['error']}"
            for log_dir in broker["log_dirs"]
            if log_dir["error"] is not None
        ]
        full = [log_dir["lack_of_room"] for log_dir in broker["log_dirs"] if log_dir["lack_of_room"] is not None]
        found += [f"broker {broker['id']}: {reason}" for reason in full]
    return found


def print_broker(description: dict[str, Any]) -> None:
    """Print the description for people."""
    output.say(f"Cluster {description['cluster_id']}, controller {description['controller']}")
    for broker in description["brokers"]:
        rack = "" if broker["rack"] is None else f", rack {broker['rack']}"
        output.say(f"\nBroker {broker['id']} at {broker['host']}:{broker['port']}{rack}")
        if broker["error"] is not None:
            output.say(f"does not answer: {broker['error']}")
            continue
        headings = ["LOG-DIR", "BYTES", "PARTITIONS", "DISK-BYTES", "DISK-USABLE", "ERROR"]
        rows = [
            [item[key] for key in ("path", "bytes", "partitions", "disk_bytes", "disk_usable_bytes", "error")]
            for item in broker["log_dirs"]
        ]
        output.say(output.table(headings, rows))
        settings = [
            [name, entry["value"], entry["source"]] for name, entry in broker["settings"].items() if name not in OWN
        ]
        if settings:
            output.say("\n" + output.table(["SETTING", "VALUE", "SET-BY"], settings))
        served = [[name, f"{first}-{last}"] for name, (first, last) in broker["versions"].items()]
        output.say("\n" + output.table(["API", "VERSIONS"], served))
