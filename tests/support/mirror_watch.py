"""A watch over `/v1/status` of a mirror: no lag below the truth, and how long copying stopped for."""

import time
from collections import defaultdict
from typing import Any

import httpx
import trio

from pipeline.mirror.copying.copies import SILENCE_S
from tests.support.foreign_producer import ForeignProducer
from tests.support.mirror_site import FETCH_MAX_WAIT_S

INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 2.0
FRESH_S = FETCH_MAX_WAIT_S + SILENCE_S
"""Age of an answer of the source at which the mirror calls a lag unknown."""
MAX_FAULTS = 10


class StatusWatch:
    """Asks for the status until cancelled, and judges each answer."""

    def __init__(self, url: str, producer: ForeignProducer) -> None:
        self._url = url
        self._producer = producer
        self.faults: list[str] = []
        self.answers = 0
        self.known = 0
        """Number of lags that were known."""
        self._positions: dict[int, int] = {}
        self._moved_at: dict[int, float] = {}
        self._longest_s: defaultdict[int, float] = defaultdict(float)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
            while True:
                asked_at = time.monotonic()
                document = await read_status(client, self._url)
                if document is not None:
                    self.answers += 1
                    self._judge(document, asked_at, time.monotonic())
                await trio.sleep(INTERVAL_S)

    def begin(self) -> None:
        """Forget how long copying stopped for."""
        self._longest_s.clear()
        self._moved_at = dict.fromkeys(self._moved_at, time.monotonic())

    def longest_stops_s(self) -> list[float]:
        """Return for each partition the longest time since `begin` in which the replica did not grow."""
        now = time.monotonic()
        return [max(self._longest_s[each], now - at) for each, at in sorted(self._moved_at.items())]

    def _judge(self, document: dict[str, Any], asked_at: float, now: float) -> None:
        for partition in (each for source in document["sources"] for each in source["partitions"]):
            number, position, lag = partition["partition"], partition["position"], partition["lag"]
            if position is not None and position > self._positions.get(number, -1):
                self._positions[number] = position
                self._longest_s[number] = max(self._longest_s[number], now - self._moved_at.get(number, now))
                self._moved_at[number] = now
            if lag is None:
                continue
            self.known += 1
            # A position that is not certain now was certain later than in the last answer that this watch saw.
            reached = partition["high_watermark"] - lag if position is None else position
            # The time of the request: the mirror answered later, so that its freshness bound reaches less far back.
            truth = self._producer.acknowledged_end(number, asked_at - FRESH_S) - reached
            if lag < truth and len(self.faults) < MAX_FAULTS:
                self.faults.append(f"a lag of {lag} is told where it was {truth} {FRESH_S} s ago: {partition}")


async def read_status(client: httpx.AsyncClient, url: str) -> dict[str, Any] | None:
    """Return the status, None if the mirror does not answer."""
    try:
        answer = await client.get(f"{url}/v1/status")
    except httpx.TransportError:
        return None
    document: dict[str, Any] = answer.json()
    return document
