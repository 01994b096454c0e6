"""Cluster ids of sources: which sources are refused because their names stand for the wrong cluster. Pure."""

from collections.abc import Mapping

from pipeline.mirror.journals.table import PartitionTable


def refusal_of(
    name: str, ids: Mapping[str, str | None], destination_id: str | None, table: PartitionTable
) -> str | None:
    """Return the reason why a source must not be copied, None if it may be.

    `ids`: the cluster ids that the sources report, by name in the order of the settings; None if a source has not
    answered, or has no id. A cluster without an id is not refused.
    """
    cluster_id = ids.get(name)
    if cluster_id is None:
        return None
    if cluster_id == destination_id:
        return f"{name} is the destination itself (cluster {cluster_id}): correct its bootstrap.servers"
    recorded = table.cluster_id(name)
    if recorded not in (None, cluster_id):
        return (
            f"{name} is cluster {recorded} in the partition table, but its bootstrap.servers lead to cluster "
            f"{cluster_id}: correct bootstrap.servers, or give the other cluster another name"
        )
    names = table.names_of(cluster_id)
    same = [other for other in names if other in ids] or [other for other, known in ids.items() if known == cluster_id]
    if same[0] != name:
        return f"{name} is the same cluster as {same[0]} (cluster {cluster_id}): remove one of them from the settings"
    if names and name not in names and not table.has_source(name):
        return f"{name} is cluster {cluster_id}, which the partition table knows as {names[0]}: give it that name"
    return None
