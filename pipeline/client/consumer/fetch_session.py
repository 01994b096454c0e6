"""Fetch session of the idle partitions at one broker (KIP-227). Pure; `fetcher.py` acts.

The first request names all partitions, later ones name what has changed. The broker answers with the partitions that
have news, and remembers the others. So an idle partition costs next to nothing, on both sides.

Invariants:
A. `_told` is what the broker has of each partition. The outcome of a request that failed is unknown: the next request
   names all partitions, and ends the session that the broker may still have.
B. An answer in the session that leaves out a partition says that it has no records, no other high watermark than the
   session's last answer for it, and no error. So the high watermarks that count are those of the session
   (`_high_watermarks`): another request may have found an older one, and the session's last answer counts here also if
   it came too late for its partition.
C. An answer of a throttled request says nothing about what it leaves out: Apache Kafka sends it empty, whatever there
   is. An answer without session, or with an error, says nothing either.
D. A broker that grants no session gets all partitions in each request, which asks for a session again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.consumer.fetch_plan import FetchBounds, FetchState, fetch_request
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import (
    FIRST_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
)

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors of a session that the broker has ended."""


class IdleFetchSession:
    """The session, from one request to the next."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._told: dict[TopicPartition, tuple[int, int, int]] = {}
        """Offset, leader epoch and largest number of bytes of each partition."""
        self._ids: dict[str, uuid.UUID] = {}
        """Topic ids, as the broker was told."""
        self._high_watermarks: dict[TopicPartition, int] = {}
        """High watermarks as the session last named them, without partitions whose last answer was an error."""

    @property
    def is_open(self) -> bool:
        """True if the next request names only what has changed."""
        return self._epoch != INITIAL_EPOCH

    def request(
        self, states: Sequence[FetchState], view: ClusterMetadata, config: ConsumerConfig, bounds: FetchBounds
    ) -> FetchRequest:
        """Return the request by which the session has these partitions and no others."""
        changed = self._changed(states, bounds)
        ids = view.topic_ids({state.topic_partition.topic for state in changed})
        if any(self._ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items()):
            self.end()  # a topic was created again; its partitions are others
            return self.request(states, view, config, bounds)
        self._ids |= ids
        forgotten: dict[str, list[int]] = {}
        if len(self._told) > len(states):
            for topic_partition in self._told.keys() - {state.topic_partition for state in states}:
                del self._told[topic_partition]
                self._high_watermarks.pop(topic_partition, None)
                forgotten.setdefault(topic_partition.topic, []).append(topic_partition.partition)
        return replace(
            fetch_request(changed, view, config, bounds),
            session_id=self._id,
            session_epoch=self._epoch,
            forgotten_topics_data=tuple(
                ForgottenTopic(topic=topic, topic_id=self._ids[topic], partitions=tuple(partitions))
                for topic, partitions in forgotten.items()
            ),
        )

    def _changed(self, states: Sequence[FetchState], bounds: FetchBounds) -> list[FetchState]:
        """Return the partitions of which the broker has nothing, or something else, and note them as told."""
        changed = []
        for state in states:
            wanted = state.offset, state.leader_epoch, min(bounds.max_partition_bytes, state.max_bytes)
            if self._told.get(state.topic_partition) != wanted:
                self._told[state.topic_partition] = wanted
                changed.append(state)
        return changed

    def take(
        self, response: FetchResponse, answers: Mapping[TopicPartition, PartitionData]
    ) -> Mapping[TopicPartition, int]:
        """Take note of an answer without error, and of what it has of each partition.

        Return the high watermarks of the partitions that are as the session's last answer for them said (a live view).
        Those of `answers` count before these.
        """
        if response.session_id == NO_SESSION:
            self.end()
            self._id = NO_SESSION
            return {}
        is_throttled = self.is_open and response.throttle_time_ms > 0
        self._id = response.session_id
        self._epoch = self._epoch + 1 if self._epoch < MAX_EPOCH else FIRST_EPOCH
        for topic_partition, data in answers.items():
            if data.error_code == ErrorCode.NONE:
                self._high_watermarks[topic_partition] = data.high_watermark
            else:
                self._high_watermarks.pop(topic_partition, None)
        return {} if is_throttled else self._high_watermarks

    def end(self) -> None:
        """Have the next request name all partitions."""
        self._epoch = INITIAL_EPOCH
        self._told.clear()
        self._ids.clear()
        self._high_watermarks.clear()
