"""Users of the figure: page views of the sample log, sent to the balancers at a steady rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle

import httpx
import trio

from pipeline.cli.demo.access_log import sample_lines
from pipeline.cli.terminal.connect import wall_clock

MAX_OPEN_REQUESTS = 32
"""Of a datacenter. Users beyond wait, so that the rate falls."""
REQUEST_S = 180.0
"""Above the time in which a producer gives a record up."""


@dataclass(slots=True)
class Published:
    """What the front ends have acknowledged, and what failed."""

    records: int = 0
    value_bytes: int = 0
    line_bytes: int = 0
    failed_requests: int = 0
    reasons: set[str] = field(default_factory=set)


def lines_of(number: int, of: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of each `of`-th visitor of the sample again and again, before and after the time."""
    for line in cycle(sample_lines()[number::of]):
        before, _, rest = line.partition("[")
        yield before, rest.partition("]")[2]


async def publish(
    balancers: Sequence[str], *, seconds: float, rate: float, lines: int, age_s: float, published: Published
) -> None:
    """Send events for some seconds: at the rate, as far as the front ends take them."""
    async with trio.open_nursery() as nursery:
        for number, url in enumerate(balancers):
            users = lines_of(number, len(balancers))
            interval_s = lines * len(balancers) / rate
            nursery.start_soon(_publish_at, url, users, seconds, interval_s, lines, age_s, published)


async def _publish_at(
    url: str,
    users: Iterator[tuple[str, str]],
    seconds: float,
    interval_s: float,
    lines: int,
    age_s: float,
    done: Published,
) -> None:
    limit = trio.CapacityLimiter(MAX_OPEN_REQUESTS)
    began = trio.current_time()
    limits = httpx.Limits(max_connections=MAX_OPEN_REQUESTS, max_keepalive_connections=MAX_OPEN_REQUESTS)
    async with (
        httpx.AsyncClient(timeout=REQUEST_S, trust_env=False, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        due = began
        while due < began + seconds:
            await trio.sleep_until(due)
            time = datetime.fromtimestamp(wall_clock() / 1000 - age_s, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
            body = [f"{before}[{time}]{after}" for before, after in (next(users) for _ in range(lines))]
            await limit.acquire_on_behalf_of(due_key := object())
            nursery.start_soon(_send, client, url, body, limit, due_key, done)
            due = max(due + interval_s, trio.current_time() - 1.0)


async def _send(
    client: httpx.AsyncClient, url: str, body: list[str], limit: trio.CapacityLimiter, key: object, done: Published
) -> None:
    try:
        answer = await client.post(f"{url}/events", json={"lines": body})
        answer.raise_for_status()
        document = answer.json()
    except httpx.HTTPStatusError as error:
        _fail(done, f"{error.response.status_code}: {error.response.text[:200]}")
    except httpx.HTTPError as error:
        _fail(done, f"{type(error).__name__}: {error}")
    else:
        done.records += document["published"]
        done.value_bytes += document["bytes"]
        done.line_bytes += sum(map(len, body))
    finally:
        limit.release_on_behalf_of(key)


def _fail(done: Published, reason: str) -> None:
    done.failed_requests += 1
    done.reasons.add(reason)
