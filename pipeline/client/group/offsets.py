"""Committed offsets of a group, written and read by its member."""

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

import trio

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.admin.many_groups import fetch_offsets_of
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.config import IsolationLevel
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.coordinator_link import CoordinatorLink
from pipeline.client.group.errors import CommitFailedError
from pipeline.client.group.member import ClassicMember
from pipeline.client.group.reactions import MemberReaction, reaction_to
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pipeline.protocol.schema import ZERO_UUID

UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class MemberOffsets:
    """Commits and fetches the offsets of a member's group."""

    def __init__(self, cluster: Cluster, config: GroupConfig, link: CoordinatorLink, member: ClassicMember) -> None:
        self._cluster = cluster
        self._config = config
        self._link = link
        self._member = member

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float) -> bool:
        """Commit, and return True; False if the group rebalances and takes no commit before the member has joined, or
        the member has joined anew meanwhile, perhaps without these partitions.

        Retries while the coordinator moves or loads. A commit whose answer was lost may have happened. Raises
        CommitFailedError; KafkaError, NetworkError or DeadlineExceededError if no coordinator answered in time.
        """
        deadline = trio.current_time() + timeout_s
        failures = 0
        left = dict(offsets)
        identity = self._member.id, self._member.generation
        ids = self._cluster.view.topic_ids({topic for topic, _ in offsets})
        deleted: list[TopicPartition] = []
        while left:
            error: PipelineError = CommitFailedError("the coordinator did not answer in time", left)
            try:
                found = await self._commit_once(left, deadline)
            except (*UNREACHABLE, KafkaError) as raised:
                if isinstance(raised, KafkaError) and reaction_to(raised.code) is MemberReaction.FAIL:
                    raise
                error = raised
            else:
                deleted += [
                    each for each, code in found.items() if code in UNKNOWN_TOPIC and self._is_deleted(each, ids)
                ]
                left = {topic_partition: left[topic_partition] for topic_partition in found.keys() - set(deleted)}
                if ErrorCode.REBALANCE_IN_PROGRESS in found.values():
                    return False
                for code in found.values():
                    error = KafkaError(code, f"commit of group {self._config.group_id}")
            if not left:
                break
            failures += 1
            if not await self._cluster.back_off(failures, deadline):
                raise error
            if self._member.generation >= 0 and identity != (self._member.id, self._member.generation):
                return False
        if deleted:
            raise CommitFailedError("the topic was deleted", deleted)
        return True

    def _is_deleted(self, topic_partition: TopicPartition, ids: Mapping[str, UUID]) -> bool:
        """Return True if the view lacks the topic that it had with this id."""
        topic = topic_partition.topic
        if ids[topic] == ZERO_UUID:
            return self._cluster.view.errors.get(topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._cluster.view.topic_ids((topic,))[topic] != ids[topic]

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: float
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit, and return the partitions to try again, with the reason. Raises CommitFailedError for others."""
        member = self._member
        identity = member.id, member.generation
        if member.failure is not None:
            raise CommitFailedError(str(member.failure), offsets)
        if member.generation < 0:
            raise CommitFailedError("the member has no partitions now: the group went on without it", offsets)
        ids = self._cluster.view.topic_ids({topic for topic, _ in offsets})  # of the view that the answer belongs to
        request = self._commit_request(offsets, ids)
        timeout_s = min(self._cluster.config.request_timeout_ms / 1000, deadline - trio.current_time())
        response: OffsetCommitResponse = await self._link.ask(request, kind="offsets", timeout_s=max(0.001, timeout_s))
        codes = _codes(response, ids)
        again: dict[TopicPartition, ErrorCode] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic_partition in offsets:
            code = codes.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.ILLEGAL_GENERATION and (member.is_joining or member.generation != identity[1]):
                code = ErrorCode.REBALANCE_IN_PROGRESS  # the next generation has begun, and the member is in it
            reaction = reaction_to(code)
            if reaction in (MemberReaction.RETRY, MemberReaction.FIND, MemberReaction.REJOIN):
                again[topic_partition] = code
            elif reaction is not MemberReaction.GO_ON:
                refused[topic_partition] = code
        if identity == (member.id, member.generation):
            self._react({*again.values(), *refused.values()})
        if refused:
            raise CommitFailedError(min(refused.values()).message, refused)
        return again

    def _react(self, codes: Iterable[ErrorCode]) -> None:
        """Take note of what the codes say about the member; a code about offsets says nothing about it."""
        for code in codes:
            if reaction_to(code) is not MemberReaction.FAIL or code is ErrorCode.FENCED_INSTANCE_ID:
                self._member.react(code, "commit")
            if code in UNKNOWN_TOPIC:
                self._cluster.refresh_soon()

    def _commit_request(
        self, offsets: Mapping[TopicPartition, CommittedOffset], ids: Mapping[str, UUID]
    ) -> OffsetCommitRequest:
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, number), committed in sorted(offsets.items()):
            partition = OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
            by_topic.setdefault(topic, []).append(partition)
        return OffsetCommitRequest(
            group_id=self._config.group_id,
            generation_id_or_member_epoch=self._member.generation,
            member_id=self._member.id,
            group_instance_id=self._config.group_instance_id,
            topics=[
                OffsetCommitRequestTopic(name=name, topic_id=ids[name], partitions=partitions)
                for name, partitions in by_topic.items()
            ],
        )

    async def fetch(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offset of each partition, None where the group has none.

        Retries while the coordinator moves, loads, has offsets of open transactions or does not know a topic. Raises
        KafkaError, NetworkError or DeadlineExceededError.
        """
        deadline = trio.current_time() + timeout_s
        await self.find_topics({topic for topic, _ in partitions}, timeout_s)
        failures = 0
        while True:
            error: PipelineError = DeadlineExceededError("the committed offsets were not fetched in time")
            try:
                return await self._fetch_once(partitions, deadline)
            except (*UNREACHABLE, KafkaError) as raised:
                if isinstance(raised, KafkaError):
                    reaction = reaction_to(raised.code)
                    if reaction is MemberReaction.FAIL:
                        raise
                    if reaction is MemberReaction.FIND:
                        self._link.forget()
                    elif raised.code in UNKNOWN_TOPIC:
                        self._cluster.refresh_soon()
                error = raised
            failures += 1
            if not await self._cluster.back_off(failures, deadline):
                raise error

    async def find_topics(self, topics: Collection[str], timeout_s: float) -> None:
        """Have the cluster know these topics, or why it does not. Raises KafkaError, NetworkError,
        DeadlineExceededError.
        """
        self._cluster.track(topics)
        if not all(map(self._cluster.view.knows, topics)):
            await self._cluster.refresh(timeout_s=timeout_s)

    async def _fetch_once(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        coordinator = await self._link.find()
        names = {id_: name for name, id_ in self._cluster.view.topic_ids({topic for topic, _ in partitions}).items()}
        timeout_s = min(self._cluster.config.request_timeout_ms / 1000, deadline - trio.current_time())
        try:
            answers = await fetch_offsets_of(
                self._cluster,
                coordinator,
                {self._config.group_id: partitions},
                lambda name, topic_id: name or names.get(topic_id),
                timeout_s=max(0.001, timeout_s),
                require_stable=self._config.isolation_level is IsolationLevel.READ_COMMITTED,
            )
        except UNREACHABLE:
            self._link.forget(coordinator)
            raise
        found = answers[self._config.group_id]
        if isinstance(found, KafkaError):
            raise found
        for topic_partition in partitions:
            if topic_partition not in found:  # nobody has said that nothing is committed
                reason = f"the coordinator left {topic_partition} out of the committed offsets"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        return {topic_partition: found[topic_partition] for topic_partition in partitions}


def _codes(response: OffsetCommitResponse, ids: Mapping[str, UUID]) -> dict[TopicPartition, ErrorCode]:
    """Return the error code of each partition, also if the response has topic ids only."""
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.partition_index): ErrorCode.of(
            partition.error_code
        )
        for topic in response.topics
        for partition in topic.partitions
    }
