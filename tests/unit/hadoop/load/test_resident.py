"""The log of a resident load."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.hadoop.load import resident
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import NOTHING_NEW, LoadError, LoadResult
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.resident import ResidentLoad
from pipeline.model import HostPort
from tests.support.secured_http import basic, http_files


@pytest.fixture(autouse=True)
def default_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands configure logging for their process, and a logger that was used before keeps what held then."""
    configured = structlog.get_config()
    structlog.reset_defaults()
    monkeypatch.setattr(resident, "logger", structlog.get_logger())
    yield
    structlog.configure(**configured)


def test_a_topic_without_new_records_is_named_once_until_it_has_some() -> None:
    def outcome(result: LoadResult | None, error: Any = None) -> TopicResult:
        return TopicResult(topic="clicks", seconds=0, result=result, error=error)

    loaded = LoadResult(committed=True, manifest=None)
    rounds = [outcome(found) for found in (NOTHING_NEW, NOTHING_NEW, NOTHING_NEW, loaded, NOTHING_NEW, NOTHING_NEW)]
    rounds += [outcome(None, LoadError("clicks", "no")), outcome(NOTHING_NEW)]
    left = iter(rounds)
    load = ResidentLoad(lambda: [next(left)], metrics=CollectorRegistry(), clock=lambda: 0)
    said = []
    for _ in rounds:
        with structlog.testing.capture_logs() as logs:
            trio.run(load._round)
        said.append([entry["event"] for entry in logs])
    nothing = ["load_found_nothing_new"]
    assert said == [nothing, [], [], [], nothing, [], ["load_failed"], nothing]


async def test_metrics_of_a_secured_load_are_for_its_users_alone(tmp_path: Path) -> None:
    files = http_files(tmp_path)
    given = {"bootstrap.servers": "none:1", "topic": "t", "root": "/none", "value.format": "binary"}
    load = ResidentLoad(list, metrics=CollectorRegistry(), clock=lambda: 0)
    run = partial(load.run, interval_s=60, http_listen=HostPort("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(run, http=LoadConfig.from_settings(given | files.settings).http))
        async with httpx.AsyncClient(base_url=f"https://{address}", verify=files.context) as http:
            assert (await http.get("/metrics")).status_code == 401
            assert (await http.get("/metrics", headers=basic("reader"))).status_code == 200
        nursery.cancel_scope.cancel()
