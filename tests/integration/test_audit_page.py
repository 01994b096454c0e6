"""The audit's page in a real Chromium: what it shows, what it says when it cannot know, and the way by keyboard."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from starlette.requests import Request
from starlette.responses import Response

from tests.support.audit_documents import (
    edge,
    finding,
    flow_document,
    hour_ago,
    hour_document,
    letters_with,
    partition_entry,
    stage,
    status_document,
    story_document,
    topic_entry,
    watermark,
)
from tests.support.audit_pages import ShownAudit, failing, hanging, refusal, serving_audit, truncated
from tests.support.audit_scenes import LOST_HOURS_AGO, LOST_TEXT, company
from tests.support.browser import PAGE_DEADLINE_S, Window, chromium

HOSTILE = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">\u202e"
PAINTED = "performance.getEntriesByName('heat-map-painted').length"
GREEN = "document.getElementById('verdict').className === 'exact'"
AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"
"""Has the page ask at once, as if it came to the front."""
LOOK_AT = "window.Date.now = (now => () => now() + {ms})(Date.now)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def window(browser: Chrome) -> Window:
    return Window(browser)


async def show(window: Window, shown: ShownAudit, place: str = "") -> None:
    await window.open("about:blank")
    await window.open(f"{shown.url}/{place}")
    await window.until_true(PAINTED if shown.status["topics"] else "!document.getElementById('figures').hidden")


def exact(*names: str) -> dict[str, Any]:
    """A status document that is exact in all hours."""
    return status_document([topic_entry(name, "e" * 720) for name in names])


async def active(window: Window) -> str:
    """The text of the cell at the cursor, as a screen reader finds it."""
    found = "document.getElementById(document.getElementById('grid').getAttribute('aria-activedescendant'))"
    return str(await window.run(f"return {found}.textContent"))


async def test_flow_hours_completeness_and_latency_of_a_company(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown)
        await window.until("headline", "Records differ in 4 hours of 2 topics")
        reasons = await window.until("reasons", "Records are missing in 2 hours of orders", "1 hour of clicks")
        assert "A witness is missing in 3 hours of payments" in reasons
        flow = await window.until(
            "flow", "3 missing", "1 partition changed", "50 extra", "420 under way", "2 quarantined"
        )
        assert "from live, east" in flow
        assert "812M records of 20 topics" in flow
        chips = await window.run(
            "return [...document.querySelectorAll('.chip .number')].slice(1).map((each) => each.textContent)"
        )
        assert chips == ["17,681", "300", "6", "2", "24", "3", "1", "1", "2"]
        assert "26 topics" in await window.text("hours-title")
        assert await window.run("return document.querySelectorAll('#flow svg.lines path.line').length") == 14
        await window.until("watermarks", "orders", "31 h ago", "has not reported payments-2", "nothing")
        await window.until("watermarks-note", "16 other topics")
        await window.until("latency-charts", "live · east", "loaded:lake · hub", "p99")
        assert await window.complaints() == []


async def test_counts_that_grow_become_rates_and_fewer_counts_are_no_rate(window: Window) -> None:
    flow = flow_document([stage("live", "east", 1_000_000), stage("replica", "hub", 500)])
    async with serving_audit(status=exact("clicks"), flow=flow) as shown:
        await show(window, shown)
        await window.until("flow", "rate: not known yet")
        assert "0 records/s" not in await window.text("flow")
        flow["stages"][0] |= {"records": 1_003_000, "bytes": 200_600_000}
        flow["stages"][1] |= {"records": 400, "bytes": 80_000}
        # Polls are 3 s apart; answers without news count as well, so the rate falls as time goes on.
        await window.until_true(
            "/[1-9][\\d,.]* records\\/s/.test(document.querySelector('[data-tier=live]').innerText)"
        )
        rate = str(await window.run("return document.querySelector('[data-tier=live] b').innerText"))
        assert 100 < float(rate.replace(",", "")) < 1001
        assert "rate: not known yet" in str(
            await window.run("return document.querySelector('[data-tier=replica]').innerText")
        )


async def test_the_picture_changes_without_a_reload_and_unchanged_documents_are_not_sent_again(window: Window) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        await show(window, shown)
        await window.until("headline", "All records of 1 topic have arrived, exactly")
        await window.until_true(GREEN)
        await window.run(AGAIN)
        with trio.fail_after(PAGE_DEADLINE_S):
            while not shown.not_modified:
                await trio.sleep(0.02)
        assert await window.run(f"return {GREEN}")
        shown.status = status_document([topic_entry("clicks", letters_with({3: "-"}))])
        await window.run(AGAIN)
        await window.until("headline", "Records differ in 1 hour of 1 topic")
        assert not await window.run(f"return {GREEN}")


async def test_an_audit_that_was_killed_is_said_in_big_letters_over_a_grey_picture(window: Window) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        await show(window, shown)
        await window.until("headline", "exactly")
        shown.server.cancel()
    await window.run(AGAIN)
    await window.until("headline", "The audit does not answer since")
    await window.until("contact", "the present state is unknown")
    assert await window.run("return document.body.className") == "silent"
    assert "No answer" in await window.run("return document.title")
    assert not await window.run(f"return {GREEN}")
    size = "parseFloat(getComputedStyle(document.getElementById('headline')).fontSize)"
    assert float(await window.run(f"return {size}")) >= 27
    grey = "getComputedStyle(document.getElementById('grid')).filter"
    assert await window.run(f"return {grey}") == "grayscale(1)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [(failing, "the ledger is full (HTTP status 503)"), (truncated, "not complete JSON")],
    ids=["error", "truncated"],
)
async def test_an_answer_that_is_none_is_never_shown_as_good_and_the_page_recovers(
    window: Window, answer: Any, said: str
) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        shown.faults["status"] = answer
        await window.open(shown.url)
        await window.until("headline", "The audit does not answer")
        await window.until("contact", said)
        assert await window.run("return document.getElementById('figures').hidden")
        shown.faults.clear()
        await window.run(AGAIN)
        await window.until("headline", "All records of 1 topic have arrived, exactly")
        shown.faults["status"] = answer
        await window.run(AGAIN)
        await window.until("headline", "The audit does not answer since")
        assert not await window.run(f"return {GREEN}")


async def test_a_document_of_another_form_is_an_error_and_no_empty_picture(window: Window) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        del shown.status["counts"]
        await window.open(shown.url)
        await window.until("headline", "The audit does not answer")
        await window.until("contact", "another form than expected: counts")


async def test_figures_grow_old_while_a_request_hangs_or_the_machine_slept(window: Window) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        await show(window, shown)
        await window.until("headline", "exactly")
        shown.faults["status"] = hanging
        await window.run(LOOK_AT.format(ms=60_000))
        await window.until("headline", "The audit does not answer since")
        await window.until("contact", "the request hangs, or a cache stands between")
        await window.until("contact", "as of 6")


async def test_answers_out_of_a_cache_are_not_fresh(window: Window) -> None:
    async with serving_audit(status=exact("clicks"), is_frozen=True) as shown:
        await show(window, shown)
        await window.until("headline", "exactly")
        await window.run(LOOK_AT.format(ms=30_000))
        await window.run(AGAIN)
        await window.until_true(
            "performance.getEntriesByType('resource').filter((each) => each.name.includes('v1/status')).length > 1"
        )
        await window.until("headline", "The audit does not answer since")


async def test_a_browser_whose_clock_is_wrong_by_a_day_shows_the_same_ages(window: Window) -> None:
    for ms in (86_400_000, -86_400_000):
        async with serving_audit(**company()) as shown:
            await window.command("Page.enable")
            source = LOOK_AT.format(ms=ms)
            await window.command("Page.addScriptToEvaluateOnNewDocument", source=source)
            await show(window, shown)
            await window.until("headline", "Records differ in 4 hours")
            await window.until("contact", "As of 2026-11-01 10:46 UTC, ")
            assert "h ago" not in await window.text("contact")
            flow = await window.until("flow", " s ago")  # not "4.0 s ago": that is shown for a tenth of a second
            assert "h ago" not in flow
            assert "min ago" not in flow
            await window.command("Page.addScriptToEvaluateOnNewDocument", source=LOOK_AT.format(ms=-ms))


async def test_a_flow_that_is_old_takes_the_green_away(window: Window) -> None:
    async with serving_audit(status=exact("clicks"), flow=company()["flow"]) as shown:
        shown.faults["flow"] = failing
        await show(window, shown)
        await window.until("reasons", "the flow is not fresh: the judgement failed")
        await window.until("flow-age", "not fresh")
        assert not await window.run(f"return {GREEN}")


async def hostile_failure(_request: Request) -> Response:
    return refusal(503, f"refused {HOSTILE}")


async def test_hostile_names_are_shown_and_do_nothing(window: Window) -> None:
    topic, hour_ms = f"clicks{HOSTILE}", hour_ago(2)
    witness = {"name": HOSTILE, "reason": HOSTILE, "cluster": HOSTILE, "partition": HOSTILE}
    found = finding(topic, 0, "missing", f"lost {HOSTILE}", witness=witness, explanation=HOSTILE, kind=HOSTILE)
    partition = partition_entry(topic, 0, "missing", [found])
    partition["stages"][f"consumed:{HOSTILE}"] = partition["stages"]["live"]
    hour = hour_document(
        topic, hour_ms, "missing", [partition], rests_on=[HOSTILE], missing_witnesses=[witness], kind=HOSTILE
    )
    hour["stages"][f"consumed:{HOSTILE}"] = hour["stages"]["live"]
    flow = flow_document(
        [stage("live", HOSTILE, 1), stage(f"consumed:{HOSTILE}", HOSTILE, 2)],
        [edge(f"loaded:{HOSTILE}", f"consumed:{HOSTILE}", HOSTILE, {"-": 1})],
        [watermark(topic, 3, HOSTILE)],
    )
    status = status_document([topic_entry(topic, letters_with({2: "-"}), waits_for=HOSTILE)], unknown=[witness])
    async with serving_audit(
        status=status,
        flow=flow,
        hours={(topic, hour_ms): hour},
        stories={(topic, hour_ms): story_document(topic, hour_ms, "missing", [f"story {HOSTILE}"])},
    ) as shown:
        await show(window, shown)
        await window.until("reasons", "<script>document.title='caught'</script>")
        await window.until("flow", "<img src=x")
        await window.until("watermarks", "<img src=x")
        await window.run(f"location.hash = '#/' + encodeURIComponent({json.dumps(topic)}) + '/{hour_ms}'")
        await window.until("hour-body", "lost <script>", "Missing witnesses", "explained by <script>")
        await window.until("story", "story <script>")
        shown.faults = dict.fromkeys(("flow", "latency", "explain", "status"), hostile_failure)
        await window.run("document.getElementById('details').close()")
        await window.until_true("location.hash === ''")
        await window.run(AGAIN)
        await window.run(f"location.hash = '#/' + encodeURIComponent({json.dumps(topic)}) + '/{hour_ms}'")
        await window.until("story-state", "refused <script>")
        await window.until("flow-age", "refused <script>")
        await window.until("contact", "refused <script>")
        text = await window.run("return document.body.innerText")
        assert "\u202e" not in text
        assert await window.run("return document.querySelectorAll('body img, main script, dialog script').length") == 0
        assert "caught" not in await window.run("return document.title")
        assert [each for each in await window.complaints() if "503" not in each] == []


async def test_the_policy_forbids_scripts_that_come_into_the_page(window: Window) -> None:
    async with serving_audit(status=exact("clicks")) as shown:
        await show(window, shown)
        assert await window.complaints() == []
        await window.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=\"//127.0.0.1:1/x\" onerror=alert(1)>')"
        )
        await window.until_true("document.images.length")
        assert any("Content Security Policy" in each for each in await window.complaints())


async def test_the_whole_way_by_keyboard(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown)
        await window.until("flow", "3 missing")
        assert await window.nameless("a, button, input, select, [role=grid], svg[role=img], summary") == []
        await window.press("/")
        assert await window.run("return document.activeElement.id") == "name-filter"
        await window.press("orders")
        await window.until("shown", "1 of 26 topics")
        await window.press(Keys.ENTER)
        assert await window.run("return document.activeElement.id") == "grid"
        assert "pending" in await active(window)
        await window.press("p")  # back to the trouble before
        assert (await active(window)).startswith("missing, 2026-10-31")
        await window.press(Keys.ENTER)  # into the hours of this day: the newest of the worst
        assert await active(window) == "missing, 2026-10-31 04:00, orders"
        await window.until("cell-size", "A cell is one hour")
        await window.press(Keys.ENTER)
        await window.until("hour-body", LOST_TEXT, "within offsets 1,040 to 1,042", "1,000 to 1,099")
        await window.until("story", "No gap of the mirror's ledger")
        assert str(await window.run("return location.hash")) == f"#/orders/{hour_ago(LOST_HOURS_AGO)}"
        await window.press(Keys.ESCAPE)
        await window.until_true("!document.getElementById('details').open && location.hash === ''")
        assert await window.run("return document.activeElement.id") == "grid"
        await window.press(Keys.ESCAPE)
        await window.until("cell-size", "the worst of them")
        await window.press(Keys.HOME)
        assert (await active(window)).startswith("orders · complete to")
        await window.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        assert "2026-10-0" in await active(window)
        roles = "[...document.querySelectorAll('#grid [role]')].map((each) => each.getAttribute('role'))"
        assert await window.run(f"return {roles}") == ["row", "columnheader", "row", "rowheader", "gridcell"]
        await window.run(AGAIN)  # an answer that says the same is not read out again
        before = "window.before ??= document.querySelector('#grid [role=gridcell]')"
        await window.run(before)
        shown.status["judged_ms"] += 1
        await window.run(AGAIN)
        asked = "performance.getEntriesByType('resource').filter((each) => each.name.includes('v1/status')).length"
        await window.until_true(f"{asked} > 2")
        assert await window.run("return window.before === document.querySelector('#grid [role=gridcell]')")
        focus = "getComputedStyle(document.activeElement).outlineStyle"
        assert await window.run(f"return {focus}") == "solid"


async def test_an_address_of_an_hour_opens_it_and_its_neighbours(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown, f"#/clicks/{hour_ago(3)}")
        await window.until("hour-body", "What the verdict rests on", "the mirror's ledger of gaps", "clicks-2")
        await window.until("details-status", "exact")
        await window.run("document.getElementById('hour-before').click()")
        await window.until("hour-body", "This hour is not known", "the audit does not know this topic or hour")
        assert await window.text("details-status") == ""
        await window.run("history.back()")
        await window.until("details-status", "exact")
        await window.run(f"location.hash = '#/payments/{hour_ago(5)}'")
        await window.until("hour-body", "Missing witnesses", "broker of west", "start it, or wait for its next report")


async def test_a_click_beside_an_hour_closes_it_and_one_below_its_text_does_not(window: Window) -> None:
    click = """
    const dialog = document.getElementById('details'), box = dialog.getBoundingClientRect();
    dialog.dispatchEvent(new MouseEvent('click', { clientX: box.left + %d, clientY: box.bottom - 5, bubbles: true }));
    return dialog.open;
    """
    async with serving_audit(**company()) as shown:
        await show(window, shown, f"#/clicks/{hour_ago(3)}")
        await window.until("details-status", "exact")
        assert await window.run(click % 200)
        assert not await window.run(click % -20)


async def test_a_difference_is_narrowed_by_asking_the_brokers(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown, f"#/orders/{hour_ago(LOST_HOURS_AGO)}")
        await window.until("story", "3 records fewer")
        assert "producer 4711" not in await window.text("story")
        await window.run("document.getElementById('narrow').click()")
        await window.until("story", "written by producer 4711 of host app-3")
        assert any("narrow=true" in each for each in shown.asked)


async def test_an_open_hour_grows_old_when_the_audit_stops_answering(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown, f"#/clicks/{hour_ago(3)}")
        await window.until("details-status", "exact")
        shown.faults["hours"] = hanging
        await window.run(LOOK_AT.format(ms=60_000))
        await window.until("details-age", "No news: what is below is as of")
        assert await window.run("return document.getElementById('details').className") == "old"


async def test_filters_by_name_status_range_and_order(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown)
        chip = "[...document.querySelectorAll('.chip')].find((each) => each.innerText.includes('{}')).click()"
        await window.run(chip.format("quarantined"))
        await window.until("shown", "1 of 26 topics")
        await window.until("cell-text", "billing")
        await window.run(chip.format("missing"))
        await window.until("shown", "2 of 26 topics")
        await window.run("document.getElementById('clear').click()")
        await window.until("shown", "26 topics")
        choose = "const s = document.getElementById('{}'); s.value = '{}'; s.dispatchEvent(new Event('change'))"
        await window.run(choose.format("days", "1"))
        await window.until("grid-remarks", "4 hours with a difference or unknown lie before these days")
        await window.run(choose.format("order", "name"))
        await window.run("document.getElementById('grid').focus()")
        await window.press(Keys.HOME)
        await window.run(
            "document.getElementById('grid').dispatchEvent(new KeyboardEvent('keydown', {key: 'Home', ctrlKey: true}))"
        )
        assert "ads.impressions" in await active(window)


async def test_hours_of_impossible_times_are_told_beside_the_picture(window: Window) -> None:
    status = status_document([topic_entry("clicks", "e" * 720, outside={"-": 2, "e": 5})])
    async with serving_audit(status=status) as shown:
        await show(window, shown)
        await window.until(
            "grid-remarks", "7 hours lie before the last 30 days or in the future, 2 of them with a difference"
        )
        await window.until("headline", "Records differ in 2 hours of 1 topic")


async def test_the_theme_can_be_chosen_and_stays(window: Window) -> None:
    async with serving_audit(**company()) as shown:
        await show(window, shown)
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await window.run(f"return {ground}")
        await window.run(
            "const s = document.getElementById('theme'); s.value = 'dark'; s.dispatchEvent(new Event('change'))"
        )
        assert await window.run(f"return {ground}") != light
        await show(window, shown)
        assert await window.run("return document.getElementById('theme').value") == "dark"
        assert await window.run(f"return {ground}") != light
        pixel = "document.querySelector('.sheet canvas').getContext('2d').getImageData(2, 2, 1, 1).data[0]"
        assert int(await window.run(f"return {pixel}")) < 60  # the canvas has been painted in the dark colours
        await window.run("localStorage.clear()")


async def test_topics_that_come_and_go_are_shown_and_hidden(window: Window) -> None:
    async with serving_audit() as shown:
        await show(window, shown)
        await window.until("headline", "Nothing has been counted yet")
        shown.status = exact("clicks")
        await window.run(AGAIN)
        await window.until("shown", "1 topic")
        await window.until_true(PAINTED)
        await window.run("document.getElementById('name-filter').value = 'x'")
        await window.run("document.getElementById('name-filter').dispatchEvent(new Event('input'))")
        await window.until("grid-remarks", "No topic matches the filters")
        await window.run("document.getElementById('clear').click()")
        await window.until("cell-text", "clicks")
        assert await window.run("return document.getElementById('grid').clientHeight") > 50


async def test_an_audit_that_has_counted_nothing_is_not_called_exact(window: Window) -> None:
    async with serving_audit() as shown:
        await show(window, shown)
        await window.until("headline", "Nothing has been counted yet")
        await window.until("grid-remarks", "Nothing was counted in these 30 days")
        await window.until("flow-note", "No tier has counted anything yet")
        assert not await window.run(f"return {GREEN}")
