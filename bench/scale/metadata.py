"""Metadata of a whole cluster, by partitions: bytes of the response, and CPU of the broker and of the client for it.

A mirror asks each source for all topics at each refresh, and the hub after each change of leaders.
"""

import time
import uuid

from bench.fitting import Extrapolation, MeasuredRun
from bench.report import Options, Row, Show
from pipeline.client.cluster.metadata import ClusterMetadata, merge
from pipeline.model import FileRegion
from pipeline.net.garbage import expect_large_answers
from pipeline.protocol.codec import decode, encode
from pipeline.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_PARTITIONS = 1_000
FITTED = (3_300, 10_000, 30_000)
CHECKED = 100_000
PREDICTED = 100_000
VERSION = MetadataResponse.VERSIONS[1]
ROUNDS = 3
FIGURES = {
    "bytes": ("metadata of a cluster: response", "MB"),
    "encode": ("metadata of a cluster: CPU to write the response", "s"),
    "decode": ("metadata of a cluster: CPU to read the response", "s"),
}


def measure(options: Options, show: Show) -> list[Row]:
    """The selected rows."""
    rows = []
    selected = {key: figure for key, figure in FIGURES.items() if options.selects(figure[0])}
    if not selected:
        return []
    expect_large_answers()  # as a mirror does
    sizes = (*FITTED, CHECKED)
    found = []
    for size in sizes:
        show(f"metadata of {size:,} partitions")
        found.append(_run(size))
    for key, (name, unit) in selected.items():
        *fitted, check = (
            MeasuredRun(name=f"{size:,} partitions", size={"partitions": size}, value=figures[key])
            for size, figures in zip(sizes, found, strict=True)
        )
        predicted = f"{PREDICTED:,} partitions", {"partitions": PREDICTED}
        rows += Extrapolation(
            name=name, unit=unit, terms=["partitions"], runs=fitted, check=check, predicted=predicted
        ).rows()
    return rows


def _run(partitions: int) -> dict[str, float]:
    """Return the least of some rounds: the work is the same in each."""
    response = _response(partitions)
    times: dict[str, list[float]] = {"encode": [], "decode": []}
    for _ in range(ROUNDS):
        began = time.process_time()
        data = b"".join(each for each in encode(response, VERSION) if not isinstance(each, FileRegion))
        times["encode"].append(time.process_time() - began)
        began = time.process_time()
        merge(ClusterMetadata(), decode(MetadataResponse, VERSION, data))
        times["decode"].append(time.process_time() - began)
    return {key: min(values) for key, values in times.items()} | {"bytes": len(data) / 1e6}


def _response(partitions: int) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=node, host=f"hub-{node}", port=9092) for node in range(1, 4)]
    topics = []
    for first in range(0, partitions, TOPIC_PARTITIONS):
        numbers = range(min(TOPIC_PARTITIONS, partitions - first))
        found = [
            MetadataResponsePartition(
                partition_index=number,
                leader_id=1 + number % 3,
                leader_epoch=number % 7,
                replica_nodes=[1, 2, 3],
                isr_nodes=[1, 2, 3],
            )
            for number in numbers
        ]
        name = f"topic-{first}"
        topics.append(MetadataResponseTopic(name=name, topic_id=uuid.uuid5(uuid.NAMESPACE_URL, name), partitions=found))
    return MetadataResponse(brokers=brokers, cluster_id="hub", controller_id=1, topics=topics)
