"""The mirrors: MirrorMaker 2 of Apache Kafka 4.1 with its defaults or tuned; ours with its defaults, or with zstd."""

import os
import sys
from pathlib import Path

from bench.mirror.flows import DEFAULT, RECOMPRESSING, TUNED, Data, Flow
from bench.processes import ServerProcess
from pipeline.processes import free_port
from tests.support.jars import Artifact, fetch_jars, java
from tests.support.kafka import COLLECTOR, KAFKA_REVISION

SOURCE = "source"
HEAP = ("-Xms256M", "-Xmx2G")
"""What connect-mirror-maker.sh gives MirrorMaker 2."""
ONE_NODE = (
    *("replication.factor", "heartbeats.topic.replication.factor", "checkpoints.topic.replication.factor"),
    *("offset-syncs.topic.replication.factor", "offset.storage.replication.factor"),
    *("status.storage.replication.factor", "config.storage.replication.factor"),
)
BATCH_BYTES = 1 << 20


def mirror_of(flow: Flow, data: Data, topic: str, bootstraps: tuple[str, str], directory: Path) -> ServerProcess:
    """The process of a mirror, not running yet. `bootstraps` are those of source and destination."""
    if flow in (DEFAULT, TUNED):
        return _mirror_maker(_tuning(data) if flow is TUNED else {}, topic, bootstraps, directory)
    return _our_mirror(topic, bootstraps, directory, "zstd" if flow is RECOMPRESSING else "producer")


def replica_of(flow: Flow, topic: str) -> str:
    """The name of the replica topic at the destination."""
    return f"{SOURCE}.{topic}" if flow in (DEFAULT, TUNED) else topic


def _tuning(data: Data) -> dict[str, object]:
    """Batches of 1 MB and polls of 20,000 records, the codec of the source; memory and tasks for all partitions."""
    return {
        "tasks.max": min(data.partitions, os.cpu_count() or 1),
        "source.consumer.max.poll.records": 20_000,
        "source.consumer.max.partition.fetch.bytes": BATCH_BYTES,
        "destination.producer.batch.size": BATCH_BYTES,
        "destination.producer.buffer.memory": 128 * BATCH_BYTES,
        "destination.producer.compression.type": data.codec,
        "destination.producer.linger.ms": 100,
    }


def _mirror_maker(tuning: dict[str, object], topic: str, bootstraps: tuple[str, str], directory: Path) -> ServerProcess:
    source, destination = bootstraps
    given = {
        "clusters": f"{SOURCE}, destination",
        f"{SOURCE}.bootstrap.servers": source,
        "destination.bootstrap.servers": destination,
        f"{SOURCE}->destination.enabled": "true",
        f"{SOURCE}->destination.topics": topic,
        **dict.fromkeys(ONE_NODE, 1),
        **tuning,
    }
    properties = directory / "mirror.properties"
    properties.write_text("".join(f"{key} = {value}\n" for key, value in given.items()), encoding="utf-8")
    jars = fetch_jars(
        Artifact("org.apache.kafka", "connect-mirror", KAFKA_REVISION),
        Artifact("org.apache.kafka", "connect-runtime", KAFKA_REVISION),
    )
    command = [java(), *HEAP, *COLLECTOR, "-cp", f"{jars}/*", "org.apache.kafka.connect.mirror.MirrorMaker"]
    return ServerProcess([*command, str(properties)], 0, directory / "mirror.log")


def _our_mirror(topic: str, bootstraps: tuple[str, str], directory: Path, compression: str) -> ServerProcess:
    source, destination = bootstraps
    port = free_port()
    config = directory / "mirror.toml"
    config.write_text(
        f'destination.bootstrap.servers = "{destination}"\ntopics = ["{topic}"]\nhttp.listen = "127.0.0.1:{port}"\n'
        f'compression.type = "{compression}"\n'
        f'[[sources]]\nname = "{SOURCE}"\nbootstrap.servers = "{source}"\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pipeline", "mirror", "start", "--config", str(config)]
    return ServerProcess(command, port, directory / "mirror.log")
