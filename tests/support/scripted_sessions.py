"""Fetch sessions of scripted brokers, as Apache Kafka keeps them (KIP-227)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import UUID

from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    INITIAL_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

NOT_TOLD = -1
Place = tuple[str, UUID, int]


@dataclass
class ScriptedSession:
    """What a client asks for, and the high watermarks that it was told."""

    epoch: int = FIRST_EPOCH
    asked: dict[Place, FetchPartition] = field(default_factory=dict)
    told: dict[Place, int] = field(default_factory=dict)

    def update(self, request: FetchRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                place = topic.topic, topic.topic_id, partition.partition
                self.asked[place] = partition
                self.told.setdefault(place, NOT_TOLD)
        for left in request.forgotten_topics_data:
            for number in left.partitions:
                del self.asked[left.topic, left.topic_id, number]
                del self.told[left.topic, left.topic_id, number]

    def request(self, request: FetchRequest) -> FetchRequest:
        """The request with all partitions of the session."""
        topics = [
            FetchTopic(topic=name, topic_id=topic_id, partitions=[asked])
            for (name, topic_id, _), asked in self.asked.items()
        ]
        return replace(request, topics=topics)

    def news(self, response: FetchResponse, *, is_first: bool) -> FetchResponse:
        """What the client was not told yet; all of it is told now."""
        named = []
        for topic, place in zip(response.responses, self.asked, strict=True):
            (data,) = topic.partitions
            if is_first or data.error_code or data.records or data.high_watermark != self.told[place]:
                named.append(replace(topic, topic=place[0], topic_id=place[1]))
            self.told[place] = NOT_TOLD if data.error_code else data.high_watermark
        return replace(response, responses=named)


class ScriptedSessions:
    """The sessions of all brokers."""

    def __init__(self) -> None:
        self.of: dict[tuple[BrokerId, int], ScriptedSession] = {}
        self.requests: list[tuple[BrokerId, FetchRequest]] = []
        """Those that were answered in a session, each when its answer was decided."""
        self.is_throttling = False
        """True if answers in sessions are those of a client over its quota: empty, whatever there is."""
        self._ids = count(1)

    def begin(self, broker: BrokerId, request: FetchRequest) -> tuple[int, ScriptedSession] | ErrorCode:
        """The session of a request, or the reason why it has none."""
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self.of.pop((broker, request.session_id), None)
            number = next(self._ids)
            session = self.of[broker, number] = ScriptedSession()
        elif (broker, request.session_id) not in self.of:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        else:
            number, session = request.session_id, self.of[broker, request.session_id]
            if session.epoch != request.session_epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            session.epoch += 1
        session.update(request)
        return number, session

    def answer(
        self,
        broker: BrokerId,
        request: FetchRequest,
        number: int,
        read: Callable[[FetchRequest], FetchResponse],
        *,
        is_last: bool,
    ) -> FetchResponse | None:
        """The answer in a session; None if there is no news yet, unless it is the last chance."""
        session, is_first = self.of.get((broker, number)), request.session_epoch == INITIAL_EPOCH
        if session is None:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if self.is_throttling and not is_first:
            self.requests.append((broker, request))
            return FetchResponse(session_id=number, throttle_time_ms=1)
        response = session.news(read(session.request(request)), is_first=is_first)
        if not response.responses and not is_last:
            return None
        self.requests.append((broker, request))
        return replace(response, session_id=number)
