"""Promotion of replica topics of the hub: their copying ends, and producers may write.

A promotion is two changes of the topic's settings, each durable in the hub's ZooKeeper:

1. `mirror.promoted` is set. From then on brokers refuse copies, and, since `mirror.source` is still set, producers.
2. `ends` is added to `mirror.promoted`, and `mirror.source` is removed. From then on producers may write.

Invariants:
A. Between the two changes nobody appends. `ends` are read there, once each live broker with a replica has the first
   change, each leader has refused a copy because of it, and each high watermark has reached the log end offset. So
   `ends` separates copies from records of producers, and no copy lies behind it.
B. Each step is found in the settings again. A promotion that was interrupted anywhere, or runs twice at once, goes on
   where the settings are.
C. No probe appends anything: it requires a log end offset that no log has.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import (
    ConfigResource,
    alter_configs,
    describe_topic_settings,
    describe_topic_settings_at,
)
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.client.producer.raw_produce import RawProduced, raw_produce
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.mirror.topics.replica_topics import MIRROR_SOURCE_CONFIG
from pipeline.model import MAX_INT64, Clock, TopicPartition
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.list_offsets import LATEST

NO_LOG_END = MAX_INT64
"""Log end offset that no log has (invariant C)."""
_PROBE = b"\0"
_POLL_S = 0.05
_MARGIN = 10
"""Factor by which ends may grow while copying stops, so that their text is known to fit before anything is changed."""


class PromotionError(PipelineError):
    """A topic cannot be promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedTopic:
    """Outcome of a promotion. `ends` are the log end offsets of the copies, by partition."""

    topic: str
    at_ms: int | None
    """Time of the promotion in ms; None for a dry run."""
    ends: tuple[int, ...]
    was_promoted: bool
    """True if the topic was promoted before."""


class Promoter:
    """Promotes topics of one hub."""

    def __init__(self, hub: Cluster, *, clock: Clock, timeout_s: float) -> None:
        self._hub = hub
        self._clock = clock
        self._timeout_s = timeout_s

    async def preview(self, topic: str) -> PromotedTopic:
        """Return the outcome that a promotion would have now, and change nothing. Raises as `promote`."""
        promotion = await self._read(topic)
        if promotion is not None and promotion.ends is not None:
            return _promoted(topic, promotion, was_promoted=True)
        ends = await self._high_watermarks(topic)
        return PromotedTopic(topic=topic, at_ms=None, ends=ends, was_promoted=False)

    async def promote(self, topic: str) -> PromotedTopic:
        """Promote a topic, or finish its promotion. When this returns, all leaders accept producers.

        Raises PromotionError if the topic is no replica or has too many partitions; nothing was changed then. Raises
        DeadlineExceededError, KafkaError, NetworkError if a broker does not answer in time; the topic may accept
        neither copies nor producers then, until `promote` is called again.
        """
        deadline = trio.current_time() + self._timeout_s
        promotion = await self._read(topic)
        was_promoted = promotion is not None and promotion.ends is not None
        while promotion is None or promotion.ends is None:
            changes: dict[str, str | None]
            if promotion is None:
                await self._check_room(topic)
                changes = {MIRROR_PROMOTED: Promotion(at_ms=self._clock()).encode()}
            else:
                ends = await self.final_ends(topic, deadline)
                complete = Promotion(at_ms=promotion.at_ms, ends=ends)
                changes = {MIRROR_PROMOTED: complete.encode(), MIRROR_SOURCE_CONFIG: None}
            refusal = await self._change(topic, changes)
            before, promotion = promotion, await self._read(topic)
            if refusal is not None and promotion == before:  # else another promotion was quicker
                reason = f"{refusal}. All brokers of the hub must know {MIRROR_PROMOTED}: upgrade those that do not"
                raise PromotionError(f"{topic} cannot be promoted: {reason}") from refusal
        await self._wait_for_producers(topic, deadline)
        return _promoted(topic, promotion, was_promoted=was_promoted)

    async def _read(self, topic: str) -> Promotion | None:
        """Return the present promotion. Raises PromotionError for a topic that is no replica, KafkaError."""
        names = (MIRROR_SOURCE_CONFIG, MIRROR_PROMOTED)
        settings = await describe_topic_settings_at(self._hub, None, topic, names, timeout_s=self._timeout_s)
        if settings.get(MIRROR_PROMOTED):
            return Promotion.parse(settings[MIRROR_PROMOTED])
        if not settings.get(MIRROR_SOURCE_CONFIG):
            raise PromotionError(f"{topic} is no replica: it has no {MIRROR_SOURCE_CONFIG}. Producers may write to it")
        return None

    async def _check_room(self, topic: str) -> None:
        """Raise PromotionError if the ends of all partitions could not be recorded."""
        ends = tuple(min(MAX_INT64, end * _MARGIN) for end in await self._high_watermarks(topic))
        try:
            Promotion(at_ms=self._clock(), ends=ends).encode()
        except PipelineError as error:
            raise PromotionError(f"{topic} cannot be promoted: {error}") from error

    async def _change(self, topic: str, changes: Mapping[str, str | None]) -> KafkaError | None:
        """Change settings of the topic, and return the refusal if their values are refused. Raises KafkaError."""
        try:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            await alter_configs(self._hub, {resource: changes}, timeout_s=self._timeout_s)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
            return error
        return None

    async def final_ends(self, topic: str, deadline: float) -> tuple[int, ...]:
        """Return the final log end offsets, once nobody can append (invariant A). Raises DeadlineExceededError."""
        await self._wait_for_settings(topic, lambda settings: bool(settings.get(MIRROR_PROMOTED)), deadline)

        def is_refused(result: RawProduced) -> bool:
            return _has_code(result, ErrorCode.PRODUCER_FENCED)

        while True:
            probed = await self._probe(topic, is_refused, deadline, keep_offsets=True)
            committed = await self._high_watermarks(topic)
            if committed == tuple(result.log_end_offset for _, result in sorted(probed.items())):
                return committed
            await self._pause(topic, deadline, "its replicas in sync have not copied all records yet")

    async def _wait_for_producers(self, topic: str, deadline: float) -> None:
        """Wait until all leaders accept producers. Raises DeadlineExceededError."""

        def is_accepted(result: RawProduced) -> bool:
            return result.is_overlap  # refused for the log end offset alone

        await self._wait_for_settings(topic, lambda settings: not settings.get(MIRROR_SOURCE_CONFIG), deadline)
        await self._probe(topic, is_accepted, deadline, keep_offsets=False)

    async def _wait_for_settings(
        self, topic: str, is_there: Callable[[Mapping[str, str]], bool], deadline: float
    ) -> None:
        """Wait until each live broker with a replica reports the topic's settings so. Raises DeadlineExceededError.

        Followers count as well: any of them may lead next.
        """
        while True:
            metadata = await self._metadata(topic)
            silent = []
            for broker in sorted({each for partition in metadata.partitions.values() for each in partition.replicas}):
                if broker not in self._hub.view.brokers:  # a broker that returns reads the settings before it leads
                    continue
                try:
                    names = (MIRROR_SOURCE_CONFIG, MIRROR_PROMOTED)
                    timeout_s = max(_POLL_S, deadline - trio.current_time())
                    told = await describe_topic_settings_at(self._hub, broker, topic, names, timeout_s=timeout_s)
                except UNREACHABLE as error:
                    silent.append(f"broker {broker} does not answer ({error})")
                else:
                    silent += [] if is_there(told) else [f"broker {broker} has not seen the change yet"]
            if not silent:
                return
            await self._pause(topic, deadline, silent[0])

    async def _probe(
        self, topic: str, is_expected: Callable[[RawProduced], bool], deadline: float, *, keep_offsets: bool
    ) -> dict[TopicPartition, RawProduced]:
        """Ask each leader for an append that it must refuse, until all refuse it as expected.

        Raises DeadlineExceededError.
        """
        while True:
            metadata = await self._metadata(topic)
            partitions = [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
            results = await raw_produce(
                self._hub,
                dict.fromkeys(partitions, _PROBE),
                keep_offsets=keep_offsets,
                timeout_s=max(_POLL_S, deadline - trio.current_time()),
                ends=dict.fromkeys(partitions, NO_LOG_END),
            )
            others = {each: result.error for each, result in results.items() if not is_expected(result)}
            if not others and len(results) == len(partitions):
                return results
            await self._pause(topic, deadline, "; ".join(f"{each}: {error}" for each, error in others.items()))

    async def _high_watermarks(self, topic: str) -> tuple[int, ...]:
        metadata = await self._metadata(topic)
        wanted = {TopicPartition(topic, number): LATEST for number in metadata.partitions}
        found = await list_offsets(self._hub, wanted, timeout_s=self._timeout_s)
        return tuple(listed.offset for _, listed in sorted(found.items()))

    async def _metadata(self, topic: str) -> TopicMetadata:
        self._hub.track([topic])
        await self._hub.refresh(timeout_s=self._timeout_s)
        return await self._hub.topic(topic, timeout_s=self._timeout_s)

    async def _pause(self, topic: str, deadline: float, reason: str) -> None:
        """Wait a moment before the next look. Raises DeadlineExceededError after the deadline."""
        if trio.current_time() + _POLL_S > deadline:
            raise DeadlineExceededError(f"{topic}: {reason}. Run the command again: it continues where it was")
        await trio.sleep(_POLL_S)


async def promotions_of(hub: Cluster, topics: Iterable[str], *, timeout_s: float) -> dict[str, Promotion]:
    """Return the promotions of those of these topics that were promoted, or are being promoted.

    Raises KafkaError, NetworkError, ConfigurationError.
    """
    found = await describe_topic_settings(hub, sorted(topics), (MIRROR_PROMOTED,), timeout_s=timeout_s)
    texts = {topic: settings.get(MIRROR_PROMOTED) for topic, settings in found.items()}
    return {topic: Promotion.parse(text) for topic, text in texts.items() if text}


def _promoted(topic: str, promotion: Promotion, *, was_promoted: bool) -> PromotedTopic:
    assert promotion.ends is not None
    return PromotedTopic(topic=topic, at_ms=promotion.at_ms, ends=promotion.ends, was_promoted=was_promoted)


def _has_code(result: RawProduced, code: ErrorCode) -> bool:
    return isinstance(result.error, KafkaError) and result.error.code is code
