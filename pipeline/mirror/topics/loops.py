"""Paths of records through clusters, and the loops among them. Pure.

Invariant: a loop is found by the ids of clusters that provenance records, never by names of topics.
"""

from collections.abc import Mapping

from pipeline.model import TopicPartition
from pipeline.provenance import Origin


def path_of(origin: Origin | None, cluster: str) -> tuple[str, ...]:
    """Return the clusters that the records of a source partition have passed, the source last.

    `origin` is the provenance of the source partition, None if it is no copy. `cluster` is the id of the source, or its
    name if it has no id.
    """
    return (cluster,) if origin is None else (*origin.path, cluster)


def loop_of(
    origin: Origin | None,
    partition: TopicPartition,
    source: str,
    cluster_ids: Mapping[str, str | None],
    destination_id: str | None,
) -> str | None:
    """Return the reason if the records of a source partition come from the destination; None if they do not.

    `origin` as in `path_of`. `cluster_ids`: the ids that the sources report, by name.
    """
    if origin is None or destination_id not in origin.path:
        return None
    names = {known: name for name, known in cluster_ids.items()} | {origin.cluster: origin.source}
    way = " > ".join(names.get(cluster, cluster) for cluster in path_of(origin, cluster_ids[source] or source))
    copied = "this cluster" if origin.cluster == destination_id else origin.source
    return f"{partition.topic} of {source} is itself a copy of {copied}'s {origin.topic} ({way})"
