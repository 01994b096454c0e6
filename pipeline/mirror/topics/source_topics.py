"""Topics of the sources as their own clusters describe them: settings, and for replicas there the provenance.

Invariant: what a source last reported stays until it reports something else, also while the source is unreachable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.client.admin.resource_configs import ConfigEntry, describe_many_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.topic_settings import SettingValue
from pipeline.promotion import MIRROR_PROMOTED
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ConfigSource
from pipeline.provenance import MIRROR_PARTITIONS, Origin, Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic of a source. `refusal` says why its settings could not be read."""

    values: Mapping[str, SettingValue]
    provenance: Provenance | None = None
    refusal: str | None = None

    def origin_of(self, partition: int) -> Origin | None:
        """Return the source partition of which a partition is itself a copy; None if it is none."""
        return None if self.provenance is None else self.provenance.origin_of(partition)


class SourceTopics:
    """Topics of one source, by name."""

    def __init__(self, cluster: Cluster, config: CurrentConfig) -> None:
        self._cluster = cluster
        self._config = config
        self.topics: dict[str, SourceTopic] = {}

    async def read(
        self, topics: Iterable[str], *, timeout_s: float, with_provenance: bool = True
    ) -> dict[str, SourceTopic]:
        """Return these topics as the source describes them now, without topics that were deleted meanwhile.

        Raises KafkaError, NetworkError; a refusal of single topics is in `SourceTopic.refusal`.
        """
        names = self._config.now.followed_settings
        if with_provenance:
            names = (*names, MIRROR_PARTITIONS, MIRROR_PROMOTED)
        results = await describe_many_topics(self._cluster, sorted(topics), names, timeout_s=timeout_s)
        found = {name: _topic_of(result, self.topics.get(name), with_provenance) for name, result in results.items()}
        return {name: topic for name, topic in found.items() if topic is not None}

    def changed(self, found: Mapping[str, SourceTopic]) -> dict[str, SourceTopic]:
        """Return the topics that are described otherwise than before."""
        return {name: topic for name, topic in found.items() if self.topics.get(name) != topic}

    def take(self, found: Mapping[str, SourceTopic]) -> None:
        """Keep these topics."""
        self.topics.update(found)

    def forget(self) -> None:
        """Drop everything: the source turned out to be another cluster."""
        self.topics.clear()


def own_values(entries: Mapping[str, ConfigEntry]) -> dict[str, SettingValue]:
    """Return the values in effect, without settings that have none."""
    return {
        name: SettingValue(entry.value, entry.source is ConfigSource.TOPIC)
        for name, entry in entries.items()
        if entry.value is not None
    }


def _topic_of(
    result: dict[str, ConfigEntry] | KafkaError, known: SourceTopic | None, with_provenance: bool
) -> SourceTopic | None:
    """Return the topic as it is known now; None for a topic that was deleted meanwhile."""
    if isinstance(result, KafkaError):
        if result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return known
        known = known or SourceTopic(values={})
        return replace(known, refusal=str(result))
    values = own_values(result)
    told, promoted = values.pop(MIRROR_PARTITIONS, None), values.pop(MIRROR_PROMOTED, None)
    if promoted is not None:  # no copy of another topic any more: its path begins here
        told = None
    provenance = _provenance(told) if with_provenance or known is None else known.provenance
    return SourceTopic(values=values, provenance=provenance)


def _provenance(told: SettingValue | None) -> Provenance | None:
    try:
        return None if told is None else Provenance.parse(told.value)
    except ConfigurationError:  # a broker refuses such a value, and accepts no copies in the topic
        return None
