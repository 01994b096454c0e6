"""The replica topics: created with settings and provenance, grown with the table, and altered when sources change.

Invariants:
A. A partition is assigned only after its replica has the settings and the entry of `mirror.partitions` for it. So no
   record is copied that other settings would delete, and no record without a known source.
B. Entries of `mirror.partitions` are written before the partitions that they describe, and never changed. None is
   added for a source topic that is gone: the replica may have been created for the topic that takes over.
C. A topic of the destination without `mirror.source` is not a replica, and is left alone.
D. A replica that has what it should have costs no request.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_many_topics
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, replicas_for
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.producer.raw_produce import can_check_sources
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.mirror.config import DestinationMode
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.table import PartitionTable
from pipeline.mirror.topic_settings import DELETING, TIMESTAMP_TYPE, CombinedSettings, SettingValue
from pipeline.mirror.topics.source_topics import own_values
from pipeline.model import TopicPartition
from pipeline.promotion import MIRROR_PROMOTED
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.provenance import MIRROR_PARTITIONS, Origin, Provenance

MIRROR_SOURCE_CONFIG = "mirror.source"
"""Topic setting with the names of a replica's sources. Brokers refuse batches of other producers in such a topic."""
TIMES_OF_BATCHES = {TIMESTAMP_TYPE: "CreateTime"}
"""Settings of a replica whose brokers would otherwise replace the times of the batches, if that is their default."""
MAX_MIRROR_SOURCE = 1024
FEATURES_TIMEOUT_S = 2.0
MAX_CREATED_PARTITIONS = 1000
"""Partitions of new replicas in one request: a broker creates them in some 2 s, and the first ones are copied then."""
_REFUSALS = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})

logger = get_logger(__name__)


class NotAReplicaError(PipelineError):
    """A topic of the destination has the name of a replica, but is none."""


@dataclass(slots=True)
class ReplicaTopic:
    """A replica topic as the destination last described it."""

    topic_id: object
    values: dict[str, SettingValue]
    differences: tuple[str, ...] = ()
    refused: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """Values that the destination refused, and its reasons, by setting."""
    entered: dict[str, Mapping[int, Origin]] = field(default_factory=dict)
    """Origins that `mirror.partitions` was found to have, as they were passed, by their source."""

    @property
    def overrides(self) -> dict[str, str]:
        """The settings that the topic itself sets."""
        return {name: value.value for name, value in self.values.items() if value.is_own}

    def problems(self) -> list[str]:
        """Return what of the sources' settings the replica does not have."""
        refused = [f"{name}={value}: {reason}" for name, (value, reason) in sorted(self.refused.items())]
        return [*self.differences, *refused]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedReplica:
    """State that a replica needs before its partitions can be assigned."""

    count: int
    """Number of partitions."""
    sources: Iterable[str]
    """Sources that have a topic for the replica now."""
    settings: CombinedSettings | None
    origins: Mapping[int, Origin]
    """Provenance of the replica partitions that are to be assigned."""
    ended: Collection[int]
    """Those of them whose source topics are gone: nothing is copied into them."""

    @property
    def values(self) -> Mapping[str, str]:
        """Values of `settings`."""
        return {} if self.settings is None else self.settings.values


class ReplicaTopics:
    """The replica topics of a destination, as a partition table and the sources ask for them."""

    def __init__(self, destination: Cluster, table: PartitionTable, config: CurrentConfig) -> None:
        self._destination = destination
        self._table = table
        self._config = config
        self._turn = trio.Lock()
        self._is_marked = config.now.destination_mode is DestinationMode.EXACT
        """True if brokers know `mirror.source` and `mirror.partitions`, so that replicas have them."""
        self._checks_sources: bool | None = None if self._is_marked else False
        self.topics: dict[str, ReplicaTopic] = {}

    async def look_up(self, topics: Iterable[str], doubtful: Iterable[str] = ()) -> None:
        """Read the settings of replicas that are not known, were recreated, or are `doubtful`.

        Raises KafkaError, NetworkError.
        """
        wanted = set(topics)
        view = self._destination.view.topics
        if not wanted <= view.keys():
            found = (await self._destination.fetch_all_topics(timeout_s=self._config.timeout_s)).topics
            self._destination.track(found.keys() & wanted)
            await self._destination.refresh(timeout_s=self._config.timeout_s)
            view = self._destination.view.topics
        again = set(doubtful)
        unread = []
        for name in wanted:
            known = self.topics.get(name)
            if name not in view:
                self.topics.pop(name, None)
            elif known is None or known.topic_id != view[name].id or name in again:
                unread.append(name)
        await self._describe(unread)
        await self._find_out_about_checks()

    async def _describe(self, topics: Sequence[str]) -> None:
        if not topics:
            return
        names = (*self._config.now.followed_settings, MIRROR_SOURCE_CONFIG, MIRROR_PARTITIONS, MIRROR_PROMOTED)
        found = await describe_many_topics(self._destination, sorted(topics), names, timeout_s=self._config.timeout_s)
        for name, result in found.items():
            if isinstance(result, KafkaError):
                self.topics.pop(name, None)
                if result.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise result
            elif name in self._destination.view.topics:
                known = self.topics.get(name)
                topic_id = self._destination.view.topics[name].id
                replica = ReplicaTopic(topic_id, own_values(result))
                if known is not None and known.topic_id == topic_id:
                    replica.differences, replica.refused = known.differences, known.refused
                self.topics[name] = replica

    async def _find_out_about_checks(self) -> None:
        """Ask until all brokers that answer check sources. Brokers of older versions do not know the setting."""
        if self._checks_sources or not self._is_marked:
            return
        answers = []
        with trio.move_on_after(FEATURES_TIMEOUT_S):
            for broker in self._destination.view.brokers:
                try:
                    answers.append(await can_check_sources(self._destination, broker))
                except UNREACHABLE as error:
                    logger.info("features_unknown", broker=broker, error=str(error))
        before, self._checks_sources = self._checks_sources, bool(answers) and all(answers)
        if answers and not self._checks_sources and before is None:
            logger.warning("sources_not_checked", reason=f"brokers of the hub do not know {MIRROR_PARTITIONS}: upgrade")

    async def create(self, wanted: Mapping[str, WantedReplica]) -> None:
        """Create the replicas that are missing, in one request. `look_up` comes before.

        A failure is logged and has no effect: `ensure` creates each by itself, and raises.
        """
        async with self._turn:
            missing = {topic: replica for topic, replica in wanted.items() if topic not in self.topics}
            if len(missing) < 2:
                return
            try:
                replicas = await replicas_for(self._destination)
                new = [self._new_topic(topic, each, replicas, each.values) for topic, each in missing.items()]
                await create_topics(self._destination, new, exist_ok=True)
                await self._describe(list(missing))
            except PipelineError as error:
                logger.info("replicas_not_created_together", replicas=len(missing), error=str(error))

    async def ensure(self, topic: str, wanted: WantedReplica) -> dict[int, str]:
        """Create the replica or bring it up to date, so that its partitions can be assigned.

        Return the reasons against replica partitions that are copies of something else. `look_up` comes before. Raises
        NotAReplicaError, KafkaError, NetworkError, and ConfigurationError for too many ranges of partitions.
        """
        async with self._turn:
            if topic not in self.topics:
                await self._create(topic, wanted)
                await self._describe([topic])
            if self._is_marked and MIRROR_SOURCE_CONFIG not in self._known(topic).overrides:
                reason = f"{topic} of the hub has no mirror.source: it is a topic of its own, and no replica"
                raise NotAReplicaError(f"{reason}; give one of the two topics another name")
            await self._follow(topic, wanted.settings)
            refused = await self._enter(topic, self._known(topic), wanted)
            if len((await self._destination.topic(topic)).partitions) < wanted.count:
                await self._destination.refresh(timeout_s=self._config.timeout_s)  # another mirror may have grown it
                if len((await self._destination.topic(topic)).partitions) < wanted.count:
                    await create_partitions(self._destination, {topic: wanted.count})
            return refused

    def _is_copied_to(self, replica: ReplicaTopic) -> bool:
        """Return True if the topic is a replica and was not promoted."""
        present = replica.overrides
        return not self._is_marked or (MIRROR_SOURCE_CONFIG in present and MIRROR_PROMOTED not in present)

    async def follow(self, topic: str, wanted: CombinedSettings | None) -> None:
        """Alter the settings in which the replica differs, if it is known. Raises KafkaError, NetworkError."""
        async with self._turn:
            replica = self.topics.get(topic)
            if replica is not None and self._is_copied_to(replica):
                await self._follow(topic, wanted)

    async def _create(self, topic: str, wanted: WantedReplica) -> None:
        """Create the topic with all settings; if the destination refuses some, with those that delete records."""
        replicas, deleting = await replicas_for(self._destination), wanted.values.keys() & DELETING
        new = self._new_topic(topic, wanted, replicas, wanted.values)
        least = self._new_topic(topic, wanted, replicas, {name: wanted.values[name] for name in deleting})
        try:
            await create_topics(self._destination, [new], exist_ok=True)
        except KafkaError as error:
            if error.code not in _REFUSALS:
                raise
            await create_topics(self._destination, [least], exist_ok=True)
        await self._destination.topic(topic)

    def _new_topic(self, topic: str, wanted: WantedReplica, replicas: int, settings: Mapping[str, str]) -> NewTopic:
        """Return the topic to create. Raises ConfigurationError for too many ranges of partitions."""
        configs = dict(settings)
        if self._is_marked:
            configs[MIRROR_SOURCE_CONFIG] = _source_names({*wanted.sources, *self._table.sources_of(topic)})
        else:
            configs |= TIMES_OF_BATCHES
        if self._checks_sources:
            provenance, _ = _with_origins(topic, Provenance(), wanted)
            configs[MIRROR_PARTITIONS] = provenance.encode()
        return NewTopic(name=topic, partitions=wanted.count, replication_factor=replicas, configs=configs)

    async def _follow(self, topic: str, wanted: CombinedSettings | None) -> None:
        if wanted is None or not self._changes(self._known(topic), wanted):
            return
        await self._describe([topic])  # another mirror may have altered it, or somebody have promoted it
        replica = self._known(topic)
        changes = self._changes(replica, wanted)
        if not changes or not self._is_copied_to(replica):
            return
        before = {name: replica.overrides.get(name) for name in changes}
        try:
            await self._alter(topic, changes)
        except KafkaError as error:
            if error.code not in _REFUSALS:
                raise
            for name, value in changes.items():  # a single refused setting must not hold up the others
                try:
                    await self._alter(topic, {name: value})
                except KafkaError as refusal:
                    if refusal.code not in _REFUSALS:
                        raise
                    replica.refused[name] = (value, str(refusal))
        logger.info("replica_settings", topic=topic, before=before, after=changes, refused=sorted(replica.refused))
        await self._describe([topic])

    def _changes(self, replica: ReplicaTopic, wanted: CombinedSettings) -> dict[str, str | None]:
        """Return the values to set or, with None, to remove; without values that the destination has refused."""
        replica.differences = wanted.differences
        present = replica.overrides
        names = {*self._config.now.followed_settings, *wanted.values}
        changes = {name: wanted.values.get(name) for name in names if wanted.values.get(name) != present.get(name)}
        replica.refused = {
            name: entry for name, entry in replica.refused.items() if name in changes and changes[name] == entry[0]
        }
        return {name: value for name, value in changes.items() if name not in replica.refused}

    async def _enter(self, topic: str, replica: ReplicaTopic, wanted: WantedReplica) -> dict[int, str]:
        """Write the entries of `mirror.partitions` that are missing. Return the reasons against other partitions."""
        origins = wanted.origins
        source = next((origin.source for origin in origins.values()), "")
        if not self._checks_sources or replica.entered.get(source) is origins:
            return {}
        text = replica.overrides.get(MIRROR_PARTITIONS)
        present = Provenance() if text is None else Provenance.parse(text)
        if text is None:  # the partitions may have records from before entries were known
            wanted = replace(wanted, ended=())
        provenance, refused = _with_origins(topic, present, wanted)
        if provenance != present or text is None:
            try:
                await self._alter(topic, {MIRROR_PARTITIONS: provenance.encode()})
            except KafkaError:
                self.topics.pop(topic, None)  # another mirror may have added entries: look again
                raise
            await self._describe([topic])
        elif not refused:
            replica.entered[source] = origins
        return refused

    def is_unwritten(self, replica: TopicPartition) -> bool:
        """True if no mirror can have written to a replica: it has no entry, and brokers require one."""
        known = self.topics.get(replica.topic)
        text = None if known is None else known.overrides.get(MIRROR_PARTITIONS)
        return (
            bool(self._checks_sources) and text is not None and not Provenance.parse(text).origin_of(replica.partition)
        )

    def problems(self) -> list[dict[str, Any]]:
        """Return the entries of `topics` in the status: replicas that differ from their sources, and in what."""
        found = {name: replica.problems() for name, replica in sorted(self.topics.items())}
        return [{"topic": name, "problems": problems} for name, problems in found.items() if problems]

    def _known(self, topic: str) -> ReplicaTopic:
        if topic not in self.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"replica {topic} was deleted just now")
        return self.topics[topic]

    async def _alter(self, topic: str, changes: Mapping[str, str | None]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        await alter_configs(self._destination, {resource: changes}, timeout_s=self._config.timeout_s)


def _with_origins(topic: str, provenance: Provenance, wanted: WantedReplica) -> tuple[Provenance, dict[int, str]]:
    """Return the provenance with the entries that the replica needs, and the reasons against some partitions."""
    refused: dict[int, str] = {}
    for number, origin in sorted(wanted.origins.items()):
        known = provenance.origin_of(number)
        if known is not None and known.token() == origin.token():
            continue
        try:
            added = provenance.with_partition(number, origin)
            provenance = provenance if number in wanted.ended else added
        except ConfigurationError as error:
            replica = TopicPartition(topic, number)
            refused[number] = (
                f"the partition table has {replica} as the copy of {origin} (cluster {origin.cluster}), but "
                f"mirror.partitions of {topic} contradicts ({error.reason}): the table was lost or is that of another "
                f"hub. Restore it, or delete the replica {topic} to have it copied again"
            )
    return provenance, refused


def _source_names(names: Iterable[str]) -> str:
    joined = ",".join(sorted(names))
    return joined if len(joined) <= MAX_MIRROR_SOURCE else f"{joined[: MAX_MIRROR_SOURCE - 3]}..."


def in_groups(counts: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the replicas with these numbers of partitions in order, as many at a time as one request creates."""
    group: list[str] = []
    size = 0
    for topic, count in counts.items():
        if group and size + count > MAX_CREATED_PARTITIONS:
            yield group
            group, size = [], 0
        group.append(topic)
        size += count
    if group:
        yield group
