"""The distance of a table from the end of its topic, and the topics that a root holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import PipelineError
from pipeline.hadoop.commit.checkpoints import holds_iceberg
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.ranges.cluster_offsets import TopicState, topic_states
from pipeline.model import HostPort
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLag:
    """Records between the last commit and the end of the topic.

    bytes: an estimate, by the average size of the records that were loaded; None if none was.
    behind_ms: from the end of the last loaded window, of the partition that is farthest behind, to now; 0 without lag,
    None if a partition was never loaded or if the topic lacks loaded offsets.
    lost: offsets that the topic deleted before they were loaded.
    ahead: loaded offsets that lie beyond the end of the topic, which was truncated, restored, or created again.
    """

    records: int
    bytes: int | None
    behind_ms: int | None
    lost: int
    ahead: int


def lag_of(state: TableState, topic: TopicState, now_ms: int) -> TableLag:
    """Return the lag of a table."""
    counted = [count for count in state.counts.values() if count.records]
    loaded = sum(count.records for count in counted)
    record_bytes = sum(count.bytes for count in counted) / loaded if loaded else None
    newest: dict[int, int] = {}
    for partition, start_ms in state.counts:
        newest[partition] = max(newest.get(partition, start_ms), start_ms)
    offsets = state.offsets
    ids = (None if state.last is None else state.last.topic_id, topic.topic_id)
    ahead = sum(offset for partition, offset in offsets.items() if partition not in topic.bounds)
    if None not in ids and ids[0] != ids[1]:  # another topic of this name
        ahead, offsets = sum(offsets.values()), {}
    records = lost = 0
    last_windows: list[int | None] = []
    for partition, bounds in topic.bounds.items():
        position = offsets.get(partition, bounds.log_start_offset)
        ahead += max(0, position - bounds.high_watermark)
        behind = bounds.high_watermark - max(position, bounds.log_start_offset)
        lost += max(0, bounds.log_start_offset - position)
        if behind > 0:
            records += behind
            last_windows.append(newest.get(partition))
    behind_ms: int | None = None if ahead else 0
    if last_windows and not ahead:
        window_ms = 0 if state.last is None else state.last.window_ms
        known = [start_ms for start_ms in last_windows if start_ms is not None]
        behind_ms = max(0, now_ms - min(known) - window_ms) if len(known) == len(last_windows) else None
    return TableLag(
        records=records,
        bytes=None if record_bytes is None and records else round(records * (record_bytes or 0)),
        behind_ms=behind_ms,
        lost=lost,
        ahead=ahead,
    )


async def states_of_topics(
    bootstrap: tuple[HostPort, ...], topics: list[str], security: ClientSecurity = OPEN_SECURITY
) -> Mapping[str, TopicState]:
    """Return the bounds of topics. Raises KafkaError for an unknown topic, and the client's errors."""
    client = ClientConfig(bootstrap=bootstrap, client_id="pipeline-load-status", security=security)
    async with open_cluster(client) as cluster:
        found = await topic_states(cluster, topics)
    states = {}
    for topic, state in found.items():
        if isinstance(state, PipelineError):
            raise state
        states[topic] = state
    return states


def loaded_topics(root: str) -> list[str]:
    """Return the topics that were loaded below the root URL of a load."""
    files, path = open_filesystem(root)
    names = (directory.rsplit("/", 1)[-1] for directory in files.list_directories(path))
    layouts = {name: topic_layout(path, name) for name in names}
    return sorted(
        name for name, layout in layouts.items() if files.list_files(layout.commits) or holds_iceberg(files, layout)
    )
