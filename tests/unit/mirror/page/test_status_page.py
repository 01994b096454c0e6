"""What the mirror's HTTP server answers for the page: files, history, gaps, and the worst partitions."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio

from pipeline.mirror.copying.copies import Advice, CopyState
from pipeline.mirror.journals.gaps import GapReason, gap_of
from pipeline.mirror.page.status_page import FILES, MAX_GAPS_SHOWN
from pipeline.mirror.status import MAX_TROUBLED
from tests.support.status_pages import ShownMirror, serving_page


@asynccontextmanager
async def page() -> AsyncIterator[tuple[ShownMirror, httpx.AsyncClient]]:
    async with serving_page() as shown, httpx.AsyncClient(base_url=shown.url, trust_env=False) as client:
        yield shown, client


async def test_the_files_have_a_policy_that_forbids_other_hosts_and_inline_scripts() -> None:
    async with page() as (_, client):
        for path, (_name, kind) in FILES.items():
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_history_begins_with_the_first_sample_and_a_wrong_period_is_refused() -> None:
    async with page() as (shown, client):
        shown.copied(shown.add("east", "clicks"), lag=70)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shown.page.run)
            lags = [None]
            while lags[-1] is None:
                document = (await client.get("/v1/lag?flow=east")).json()
                (flow,) = document["flows"] or [{"offsets": [None]}]
                lags = flow["offsets"]
            nursery.cancel_scope.cancel()
        assert set(lags) == {None, 70.0}
        assert (document["period"], document["step_seconds"], document["flow_count"]) == ("hour", 10, 2)
        assert (await client.get("/v1/lag?period=week")).status_code == 400


async def test_gaps_are_newest_first_with_totals_and_a_bound() -> None:
    async with page() as (shown, client):
        assert (await client.get("/v1/gaps")).json()["is_read"] is False
        shown.gaps.is_read = True
        assignment = shown.add("east", "clicks").assignment
        for number in range(2000):
            reason = GapReason.START if number % 2 else GapReason.RETENTION
            shown.gaps.ledger.apply(gap_of(assignment, 10 * number, 10 * number + 4, reason, now_ms=number))
        document = (await client.get("/v1/gaps?limit=3")).json()
        assert [gap["first"] for gap in document["gaps"]] == [19990, 19980, 19970]
        assert (document["count"], document["is_read"]) == (2000, True)
        assert document["totals"] == [
            {"source": "east", "reason": "retention", "gaps": 1000, "missing_at_most": 5000},
            {"source": "east", "reason": "start", "gaps": 1000, "missing_at_most": 5000},
        ]
        assert len((await client.get("/v1/gaps")).json()["gaps"]) == 100
        assert len((await client.get(f"/v1/gaps?limit={MAX_GAPS_SHOWN}")).json()["gaps"]) == MAX_GAPS_SHOWN
        for wrong in ("0", "1001", "-1", "x", "9" * 5000, "²", ""):
            assert (await client.get("/v1/gaps", params={"limit": wrong})).status_code == 400


async def test_of_thousands_of_partitions_the_worst_are_listed() -> None:
    async with page() as (shown, client):
        for number in range(3000):
            shown.copied(shown.add("east", "clicks", number))
        for number in range(3000, 5000):
            shown.add("east", "clicks", number)  # not located yet
        for number in range(10):
            copy = shown.add("west", "orders", number)
            shown.copies["west"].reject(copy.assignment, "gone" * 100, advice=Advice.EXCLUDE_LOOP)
        answer = await client.get("/v1/status?partitions=troubled")
        document = answer.json()
        found = [partition["state"] for source in document["sources"] for partition in source["partitions"]]
        assert document["troubled"] == 2010
        assert len(found) == MAX_TROUBLED
        assert found.count(CopyState.REJECTED.value) == 10
        assert len(answer.content) < 500_000
        whole = (await client.get("/v1/status")).json()
        assert sum(len(source["partitions"]) for source in whole["sources"]) == 5010


async def test_a_flow_has_the_totals_of_its_partitions_and_its_latest_error() -> None:
    async with page() as (shown, client):
        shown.copied(shown.add("east", "clicks", 0), lag=3)
        shown.copied(shown.add("east", "clicks", 1), lag=4)
        flow = await flow_of(client, "east")
        assert (flow["partitions"], flow["lag"], flow["unknown_lags"]) == (2, 7, 0)
        assert flow["lag_bytes"] == 700
        assert flow["lag_seconds"] is not None
        assert flow["last_error"] is None
        copy = shown.add("east", "clicks", 2)
        shown.copies["east"].rest(copy, "no answer", Advice.ALLOW_AT_SOURCE)
        flow = await flow_of(client, "east")
        assert (flow["lag"], flow["lag_bytes"], flow["lag_seconds"], flow["unknown_lags"]) == (None, None, None, 1)
        assert flow["least_lag"]["offsets"] == 7
        assert flow["last_error"]["partition"] == "clicks-2"
        assert flow["last_error"]["error"] == "no answer"
        assert flow["last_error"]["advice"] == Advice.ALLOW_AT_SOURCE.value
        empty = await flow_of(client, "west")
        assert (empty["partitions"], empty["lag"], empty["least_lag"]["offsets"]) == (0, None, None)


async def flow_of(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    document = json.loads((await client.get("/v1/status")).content)
    (found,) = [flow for flow in document["flows"] if flow["name"] == name]
    return dict(found)


@pytest.mark.parametrize("path", ["/page.html", "/static/page.js", "/..%2fstatus_page.py", "/__init__.py"])
async def test_nothing_else_is_served(path: str) -> None:
    async with page() as (_, client):
        assert (await client.get(path)).status_code == 404
