"""`measure`: publishes events as users do, follows them through all stages, and asks the audit whether all arrived."""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import trio

from deploy.figure3.delays import SHARES, Delays, delays_of
from deploy.figure3.errors import FigureError
from deploy.figure3.lake import Lake
from deploy.figure3.page_views import TOPIC
from deploy.figure3.plan import HUB, LIVE, Plan
from deploy.figure3.users import Published, publish
from pipeline.cli.terminal.connect import wall_clock
from pipeline.deployment.company import ServiceRole

POLL_S = 0.2
ANSWER_S = 30.0
DAY_S = 86_400
WARM_UP_S = 2.0
PAPER = """\
The paper (section 4): an end-to-end delay of about 10 seconds on average, hundreds of gigabytes and close to a billion
messages a day, in all datacenters together. Here two live datacenters, a hub, HDFS and Spark share this machine."""


@dataclass(slots=True)
class Measured:
    """Figures of a run."""

    began_ms: int
    ended_ms: int = 0
    published: Published = field(default_factory=Published)
    stages: dict[str, Delays] = field(default_factory=dict)
    verdict: str = ""
    exit_code: int = 0

    @property
    def seconds(self) -> float:
        """Time from the first event to the last acknowledgement."""
        return (self.ended_ms - self.began_ms) / 1000

    def document(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        rate = self.published.records / self.seconds
        return {
            "records": self.published.records,
            "failed_requests": self.published.failed_requests,
            "reasons": sorted(self.published.reasons),
            "seconds": round(self.seconds, 1),
            "records_per_second": round(rate),
            "messages_per_day": round(rate * DAY_S),
            "bytes_per_day": round(self.published.value_bytes / self.seconds * DAY_S),
            "delays_ms": {
                name: {"records": delays.records, **delays.percentiles()} for name, delays in self.stages.items()
            },
            "audit_exit_code": self.exit_code,
        }


def measure(plan: Plan, given: argparse.Namespace) -> int:
    """Run a measurement, print it, and return the exit code of the audit's report. Raises FigureError."""
    for name in ("seconds", "rate", "lines", "deadline"):
        if getattr(given, name) <= 0:
            raise FigureError(f"--{name} must be above 0")
    measured = trio.run(_measure, plan, given)
    print(json.dumps(measured.document()) if given.json else _text(measured))
    return measured.exit_code


async def _measure(plan: Plan, given: argparse.Namespace) -> Measured:
    lake = Lake(*plan.lake)
    async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client, trio.open_nursery() as nursery:
        await nursery.start(lake.watch)
        run = partial(_publish_and_follow, plan, given, client, lake)
        await run(seconds=WARM_UP_S)  # Spark starts with the first records
        lake.forget_times()
        measured = await run(seconds=given.seconds)
        measured.stages["HDFS commit"] = await lake.delays()
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(_ask_audit, plan, measured, given.age, given.deadline)
    return measured


async def _publish_and_follow(
    plan: Plan, given: argparse.Namespace, client: httpx.AsyncClient, lake: Lake, *, seconds: float
) -> Measured:
    """Publish, and wait until all has arrived, or the deadline."""

    async def all_delays() -> dict[str, Delays]:
        return {
            "brokers": await _sum(client, [f"{url}/delays" for url in plan.front_ends.values()]),
            "online consumers": await _sum(client, [plan.readers[name] for name in LIVE]),
            "hub": await _sum(client, [plan.readers[HUB]]),
        }

    measured = Measured(began_ms=wall_clock())
    earlier, loaded = await all_delays(), lake.records
    users = partial(publish, list(plan.balancers.values()), rate=given.rate, lines=given.lines, age_s=given.age)
    await users(seconds=seconds, published=measured.published)
    measured.ended_ms = wall_clock()
    deadline = trio.current_time() + given.deadline
    while trio.current_time() < deadline:
        measured.stages = {name: now.since(earlier[name]) for name, now in (await all_delays()).items()}
        arrived = min(lake.records - loaded, *(delays.records for delays in measured.stages.values()))
        if arrived >= measured.published.records:
            break
        await trio.sleep(POLL_S)
    return measured


async def _sum(client: httpx.AsyncClient, urls: list[str]) -> Delays:
    try:
        return delays_of([(await client.get(url)).raise_for_status().json() for url in urls])
    except httpx.HTTPError as error:
        raise FigureError(f"{urls} cannot be asked: {error}; `status` shows what is down") from error


def _ask_audit(plan: Plan, measured: Measured, age_s: float, wait_s: float) -> None:
    """Have `pipeline audit report` judge the hours of the events."""
    first, last = (datetime.fromtimestamp(ms / 1000 - age_s, UTC) for ms in (measured.began_ms, measured.ended_ms))
    hours = [_hour(first), _hour(last) + timedelta(hours=1)]
    span = ["--from", hours[0].isoformat(), "--to", hours[1].isoformat(), "--wait", str(wait_s)]
    report = ["audit", "report", "--audit", plan.url(ServiceRole.AUDIT), "--topic", TOPIC, *span]
    done = subprocess.run([sys.executable, "-m", "pipeline", *report], capture_output=True, text=True, check=False)
    measured.verdict, measured.exit_code = (done.stdout + done.stderr).strip(), done.returncode


def _hour(time: datetime) -> datetime:
    return time.replace(minute=0, second=0, microsecond=0)


def _text(measured: Measured) -> str:
    figures = measured.document()
    lines = [
        f"{figures['records']:,} events taken in {figures['seconds']} s: {figures['records_per_second']:,} a second,",
        f"{figures['messages_per_day'] / 1e6:,.0f} million and {figures['bytes_per_day'] / 1e9:,.1f} GB (Avro) a day.",
        f"Requests that failed: {figures['failed_requests']}. {' '.join(figures['reasons'])}".rstrip(),
        "",
        f"{'DELAY FROM THE FRONT END TO':30} {'RECORDS':>9} " + " ".join(f"{f'p{share:.0f}':>8}" for share in SHARES),
        *(
            f"{name:30} {row['records']:>9,} " + " ".join(f"{_seconds(row[f'p{share:.0f}']):>8}" for share in SHARES)
            for name, row in figures["delays_ms"].items()
        ),
        "",
        PAPER,
        "",
        measured.verdict,
    ]
    return "\n".join(lines)


def _seconds(delay_ms: int | None) -> str:
    return "-" if delay_ms is None else f"{delay_ms / 1000:.3f} s"
