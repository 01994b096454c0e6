"""Consumers of idle partitions, and what they hear of them from one answer to the next."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from pipeline.client.consumer.fetch_session import IdleFetchSession
from pipeline.model import TopicPartition
from pipeline.protocol.messages.fetch import FetchRequest

POLL_S = 0.005


def idle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have partitions without records be idle at once."""
    monkeypatch.setattr("pipeline.client.consumer.fetch_queue.IDLE_AFTER_MS", 20)


def requests_of_sessions(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """All requests for idle partitions from now on."""
    found: list[FetchRequest] = []
    make = IdleFetchSession.request

    def request(session: IdleFetchSession, *given: Any) -> FetchRequest:
        found.append(make(session, *given))
        return found[-1]

    monkeypatch.setattr(IdleFetchSession, "request", request)
    return found


async def until_in_session(sent: Sequence[FetchRequest], after: int = 0) -> FetchRequest:
    """The first request behind so many others that names no partition: all are in the session."""
    while not (found := [each for each in sent[after:] if each.session_id and not each.topics]):
        await trio.sleep(POLL_S)
    return found[0]


class Heard:
    """What a consumer is notified of: high watermarks, and the times of the requests that were answered."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.asked_at = dict.fromkeys(partitions, 0.0)
        self.high_watermarks: dict[TopicPartition, int] = {}

    def note(self, answers: Sequence[tuple[TopicPartition, int]], asked_at: float) -> None:
        self.asked_at |= dict.fromkeys((topic_partition for topic_partition, _ in answers), asked_at)
        self.high_watermarks |= dict(answers)

    async def until_all_after(self, time_s: float, partitions: Sequence[TopicPartition] = ()) -> None:
        """Wait until requests of after this time were answered for all, or for these."""
        while min(self.asked_at[each] for each in partitions or self.asked_at) <= time_s:
            await trio.sleep(POLL_S)
