"""The mirror's status page in a real Chromium."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from selenium.webdriver import Chrome

from pipeline.client.admin.offsets import delete_records
from pipeline.mirror.copying.copies import Advice
from pipeline.mirror.journals.gaps import GapReason, gap_of, recreation_of
from pipeline.mirror.journals.pauses import Pause, PauseScope
from pipeline.mirror.page.status_page import StatusPage
from pipeline.model import HostPort
from pipeline.net.http.server import http_application, serve_http
from tests.support.brokers import clock, serving_cluster
from tests.support.browser import Window, chromium
from tests.support.mirrors import CLICKS, DEADLINE_S, make, mirroring_of, publish, until, until_copied, until_said
from tests.support.status_pages import ShownMirror, serving_page

pytestmark = pytest.mark.long

HOSTILE = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">\u202e"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def window(browser: Chrome) -> Window:
    return Window(browser)


def sample(shown: ShownMirror, seconds_ago: float) -> None:
    """A sample of the present lags, as if taken then."""
    shown.page.history.note(trio.current_time() - seconds_ago, shown.status.totals())


async def test_a_halted_partition_of_a_real_mirror_is_shown_with_its_gap_and_the_command(
    tmp_path: Any, window: Window
) -> None:
    async with serving_cluster(tmp_path / "east") as east, serving_cluster(tmp_path / "hub") as hub:
        await make(east)
        await publish(east, b"0")
        async with mirroring_of(hub, east=east):
            await until_copied(hub, CLICKS, b"0")
        await publish(east, b"1", b"2")
        await delete_records(east, {CLICKS: 2}, timeout_s=DEADLINE_S)
        async with mirroring_of(hub, east=east) as service, trio.open_nursery() as nursery:
            await until_said(service, "offsets 1 to 1")
            page = StatusPage(service.state, service.gaps, clock=clock)
            application = http_application([*page.routes(), *service.state.routes(), service.resumption.route()])
            address = await nursery.start(serve_http, application, HostPort("127.0.0.1", 0))
            nursery.start_soon(page.run)
            await window.open(f"http://{address}/")
            await window.until("headline", "The mirror needs attention")
            command = f"pipeline mirror resume --mirror http://{address} --source east --skip clicks-0"
            await window.until("troubled", "east/clicks-0", "halted", "offsets 1 to 1 (retention): 1 record", command)
            await window.until("sources", "east", "up")
            await window.until("gap-note", "is empty")
            nursery.cancel_scope.cancel()
        async with (
            mirroring_of(hub, None, {"gap_policy": "skip"}, east=east) as service,
            trio.open_nursery() as nursery,
        ):
            await until(lambda: len(service.gaps.ledger) == 1)
            page = StatusPage(service.state, service.gaps, clock=clock)
            application = http_application([*page.routes(), *service.state.routes()])
            address = await nursery.start(serve_http, application, HostPort("127.0.0.1", 0))
            await window.open(f"http://{address}/")
            await window.until("headline", "1 partition copied, without trouble; the largest lag is 0.0 s")
            await window.until("gaps", "east/clicks-0", "retention", "the source's log began at offset 2")
            assert await window.run("return document.getElementById('troubled-section').hidden")
            assert await window.complaints() == []
            nursery.cancel_scope.cancel()


async def test_an_unknown_lag_is_a_break_in_the_line_and_never_0(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        copy = shown.add("east", "clicks")
        for seconds_ago in (60, 50):
            shown.copied(copy, lag=500)
            sample(shown, seconds_ago)
        shown.copies["east"].reject(copy.assignment, "stopped", advice=Advice.EXCLUDE_LOOP)
        for seconds_ago in (40, 30):
            sample(shown, seconds_ago)
        for seconds_ago in (20, 10, 0):
            shown.copied(shown.add("east", "clicks"), lag=500)
            sample(shown, seconds_ago)
        await window.open(shown.url)
        await window.until_true("document.querySelector('#charts path.lag')?.getAttribute('d')")
        await window.run("document.querySelector('#measures [data-value=offsets]').click()")
        line = str(await window.run("return document.querySelector('#charts path.lag').getAttribute('d')"))
        parts = [[point.split() for point in part.split("L")] for part in line.split("M")[1:]]
        assert [len(part) for part in parts] == [2, 3]
        assert {height for part in parts for _, height in part} == {"0.00"}  # the top, where 500 is
        unknown = "document.querySelector('#charts rect.unknown')"
        assert await window.run(f"return {unknown}.getAttribute('width')") == "2"
        shown.copies["east"].reject(shown.add("east", "clicks").assignment, "again", advice=Advice.EXCLUDE_LOOP)
        await window.until("flows", "unknown")
        assert "0.0 s" not in (await window.text("flows")).replace("ago", "").split("unknown", 1)[0]
        assert "largest lag" not in await window.text("headline")


async def test_hostile_texts_are_shown_and_do_nothing(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        copy = shown.add("east", f"clicks{HOSTILE}")
        gap = gap_of(copy.assignment, 3, 8, GapReason.RETENTION, now_ms=clock(), detail=HOSTILE)
        shown.copies["east"].halt(copy, gap, f"refused: {HOSTILE}")
        shown.contacts["east"].set_error(f"error of the source: {HOSTILE}")
        shown.gaps.ledger.apply(gap)
        shown.gaps.is_read = True
        await window.open(shown.url)
        await window.until("reasons", "error of the source: <script>")
        troubled = await window.until("troubled", "refused: <script>", "<img src=x")
        await window.until("flows", "<img src=x")
        await window.until("gaps", "<img src=x")
        assert "\u202e" not in troubled
        assert "--skip 'clicks<script>document.title='\\''caught" in troubled  # one word for a shell
        assert await window.run("return document.querySelectorAll('main img, main script, header script').length") == 0
        assert "caught" not in await window.run("return document.title")


async def test_the_policy_forbids_scripts_that_come_into_the_page(window: Window) -> None:
    async with serving_page() as shown:
        await window.open(shown.url)
        await window.until("headline", "No trouble")
        assert await window.complaints() == []
        await window.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=\"//127.0.0.1:1/x\" onerror=alert(1)>')"
        )
        await window.until_true("document.images.length")
        assert any("Content Security Policy" in each for each in await window.complaints())


async def test_old_figures_are_not_shown_as_fresh_once_the_mirror_does_not_answer(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        shown.copied(shown.add("east", "clicks"))
        await window.open(shown.url)
        await window.until("headline", "1 partition copied")
        shown.server.cancel()  # as a mirror that was killed: connections are refused
    await window.until("headline", "No answer since")
    await window.until("contact", "the present state is unknown")
    assert await window.run("return document.body.className") == "stale"
    assert "No answer" in await window.run("return document.title")
    assert "largest lag" not in await window.text("headline")


async def test_figures_are_old_also_while_a_request_hangs_or_after_the_machine_slept(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        shown.copied(shown.add("east", "clicks"))
        await window.open(shown.url)
        await window.until("headline", "1 partition copied")
        await window.run(
            "window.fetch = () => new Promise(() => {}); const now = Date.now; Date.now = () => now() + 9000"
        )
        await window.until("headline", "No answer since")
        assert await window.run("return document.body.className") == "stale"


async def test_the_page_recovers_when_the_mirror_answers_again(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        shown.copied(shown.add("east", "clicks"))
        await window.open(shown.url)
        await window.until("headline", "1 partition copied")
        await window.run("window.answers = window.fetch; window.fetch = () => Promise.reject(new Error('cut off'))")
        await window.until("headline", "No answer since")
        await window.until("contact", "cut off")
        await window.run("window.fetch = window.answers")
        await window.until("headline", "1 partition copied")
        assert await window.run("return document.body.className") == ""


async def test_thousands_of_partitions_and_a_thousand_flows_stay_readable(window: Window) -> None:
    flows = [{"name": f"flow-{n}", "source": "east", "topics": [f"topic{n}"]} for n in range(1000)]
    async with serving_page(["east"], flows) as shown:
        for number in range(1000):
            for partition in range(3):
                shown.copied(shown.add("east", f"topic{number}", partition))
        for partition in range(300):
            copy = shown.add("east", "topic999", partition)
            shown.copies["east"].rest(copy, "no answer", Advice.ALLOW_AT_SOURCE)
        sample(shown, 0)
        await window.open(shown.url)
        await window.until("headline", "needs attention")
        rows = partial(count_of, window)
        assert await rows("#troubled tbody tr") == 200
        assert "100 more" in await window.text("troubled-more")
        assert await rows("#flows tbody tr") == 50
        assert "950 more flows" in await window.text("flows-more")
        first = await window.run("return document.querySelector('#flows tbody tr').innerText")
        assert first.startswith("flow-999")
        await window.until_true("document.querySelectorAll('#charts figure').length === 50")
        width = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert await window.run(f"return {width}")


async def count_of(window: Window, selector: str) -> int:
    return int(await window.run(f"return document.querySelectorAll('{selector}').length"))


async def test_the_choice_of_measure_and_period_changes_the_charts(window: Window) -> None:
    async with serving_page(["east"]) as shown, trio.open_nursery() as nursery:
        shown.copied(shown.add("east", "clicks"), lag=12345)
        nursery.start_soon(shown.page.run)
        await window.open(shown.url)
        await window.until_true("document.querySelector('#charts figure')")
        await window.run("document.querySelector('#measures [data-value=offsets]').click()")
        await window.until("charts", "12,345")
        await window.run("document.querySelector('#periods [data-value=day]').click()")
        await window.until_true("document.querySelector('#periods [data-value=day]').ariaPressed === 'true'")
        await window.until("charts", "12,345")
        nursery.cancel_scope.cancel()


async def test_pauses_bounds_and_settings_that_differ_from_the_file_are_shown(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        shown.copied(shown.add("east", "clicks"))
        paused = shown.add("east", "clicks", 1)
        shown.copied(paused)
        paused.pause = Pause(scope=PauseScope(topic="clicks", partition=1), time_ms=clock())
        flows = shown.status.flows
        shown.status.flows = lambda: [flow | {"throttle_bytes_per_second": 5_000_000} for flow in flows()]
        await window.open(shown.url)
        await window.until("headline", "1 partition copied, 1 paused, without trouble")
        await window.until("flows", "1 paused", "below its bound of 5.0 MB/s")
        shown.status.settings = lambda: {"version": "x", "is_of_file": False, "file_error": None}
        await window.until("reasons", "not those of the settings file")


async def test_the_end_of_a_recreated_topic_is_shown_as_unknown(window: Window) -> None:
    async with serving_page(["east"]) as shown:
        copy = shown.add("east", "clicks")
        gap = recreation_of(copy.assignment, 7, now_ms=clock(), cluster_id="an id", detail="topic id 1")
        shown.copies["east"].end(copy.assignment, gap, "the topic was deleted and created again")
        shown.gaps.ledger.apply(gap)
        shown.gaps.is_read = True
        await window.open(shown.url)
        await window.until(
            "troubled", "halted", "from offset 7 on (recreated): an unknown number of records", "--skip clicks-0"
        )
        await window.until("gaps", "recreated", "unknown")
        assert "unknown" in await window.text("gap-totals")
        assert await window.complaints() == []
