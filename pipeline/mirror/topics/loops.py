"""Paths of records through clusters: loops among them, and two paths of one mirror to the same replica. Pure.

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
    copied = "this cluster" if origin.cluster == destination_id else origin.source
    way = _shown(origin, source, cluster_ids)
    return f"{partition.topic} of {source} is itself a copy of {copied}'s {origin.topic} ({way})"


def sources_on_path(origin: Origin, source: str, cluster_ids: Mapping[str, str | None]) -> list[str]:
    """Return the other sources of the mirror that the records of a source's partition have passed.

    `cluster_ids`: the ids of the sources as far as they are known. A source without one is known by the name that
    `origin` has for it.
    """
    names = {known: name for name, known in cluster_ids.items() if known is not None}
    found = [names[cluster] for cluster in origin.path if cluster in names]
    if origin.source in cluster_ids and cluster_ids[origin.source] is None:
        found.append(origin.source)
    return [name for name in found if name != source]


def second_path_of(
    origin: Origin, partition: TopicPartition, source: str, direct: str, cluster_ids: Mapping[str, str | None]
) -> str:
    """Return the reason why a source's partition is not copied: the mirror copies the same topic from `direct`."""
    way = _shown(origin, source, cluster_ids)
    return (
        f"{partition.topic} of {source} is itself a copy of {direct}'s {origin.topic} ({way}), which this mirror "
        f"copies from {direct}: its records would be there twice"
    )


def _shown(origin: Origin, source: str, cluster_ids: Mapping[str, str | None]) -> str:
    names = {known: name for name, known in cluster_ids.items()} | {origin.cluster: origin.source}
    return " > ".join(names.get(cluster, cluster) for cluster in path_of(origin, cluster_ids[source] or source))
