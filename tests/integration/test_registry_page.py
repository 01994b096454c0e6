"""The registry's page in a real Chromium."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from pipeline.schema_registry.state.events import SchemaWritten, encode_event
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.browser import Window, chromium
from tests.support.contrasts import CONTRASTS, MIN_CONTRAST
from tests.support.registry import serving_registry

pytestmark = pytest.mark.long

HOSTILE = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">"
SUBJECTS = 10_000
MAX_SEARCH_MS = 1500
"""Ten times what a key takes here at most."""
ADDRESS = json.dumps({"type": "record", "name": "Address", "namespace": "shop", "fields": []})
LARGE = 2**53 + 1
"""A number that JavaScript cannot hold."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def window(browser: Chrome) -> Window:
    return Window(browser)


def order(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


async def validating_topics() -> dict[str, Any]:
    orders = {"topic": "orders", "key": None, "value": {"strategy": "TopicNameStrategy", "decodes": True}}
    return {"topics": [orders], "asked": 42, "age_s": 3.2}


@asynccontextmanager
async def registry(*journal: SchemaWritten, ask_topics: Any = validating_topics) -> AsyncIterator["Shown"]:
    log = MemoryJournal()
    await log.append([encode_event(event) for event in journal])
    async with serving_registry(log, ask_topics) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield Shown(url, http)


class Shown:
    """A registry, with the address of its page."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url
        self.http = http

    def page(self, subject: str = "", version: int | None = None) -> str:
        place = f"#/subjects/{quote(subject, '')}" if subject else "#/"
        return f"{self.url}/ui/{place}" + ("" if version is None else f"/versions/{version}")

    async def register(self, subject: str, text: str, **more: Any) -> None:
        path = f"/subjects/{quote(subject, '')}/versions"
        (await self.http.post(path, json={"schema": text, **more})).raise_for_status()


async def show(window: Window, url: str) -> None:
    await window.open("about:blank")
    await window.open(url)
    await window.until_true("document.querySelector('main h1') && !document.querySelector('main[aria-busy]')")


async def test_subjects_versions_differences_references_and_a_check(window: Window) -> None:
    async with registry() as shown:
        amount = {"name": "amount", "type": "long", "default": LARGE}
        await shown.register("orders-value", order(amount))
        other = {"name": "home", "type": "shop.Address", "default": {}}
        await shown.register("address", ADDRESS)
        references = [{"name": "shop.Address", "subject": "address", "version": 1}]
        await shown.register("orders-value", order(amount | {"default": LARGE - 1}, other), references=references)
        await shown.register("old-value", order())
        await shown.register(":.eu:orders-value", order())
        await shown.http.delete("/subjects/old-value")

        await show(window, shown.page())
        topics = await window.until("content", "BACKWARD", "READWRITE", "orders-value", "every datum must decode")
        assert "1 of 42 topics, as the brokers told 3.2 s ago" in topics
        await window.until("state", f"writer {shown.url}, epoch 1", "complete", " s ago")
        await window.until("matches", "3 subjects")
        await window.run("document.getElementById('deleted').click()")
        assert "old-value deleted" in await window.until("subjects", "old-value")
        await window.run(
            "const c = document.getElementById('context'); c.value = '.eu'; c.dispatchEvent(new Event('change'))"
        )
        assert await window.text("subjects") == ":.eu:orders-value"

        await show(window, shown.page("orders-value"))
        content = await window.until("content", "Version 2", "topic orders (values)", "shop.Address: address version 1")
        assert f"amount\tdefault changed\t{LARGE}\t{LARGE - 1}" in content
        assert "home\tadded" in content
        lines = await window.run("return [...document.querySelectorAll('#lines tr')].map((row) => row.innerText)")
        assert any(line.startswith("\t4\t+") or ("\t+\t" in line and "home" in line) for line in lines)
        await show(window, shown.page("address", 1))
        await window.until("content", "Referenced by", "orders-value version 2", "no other version")

        await show(window, shown.page("orders-value", 1))
        candidate = json.dumps(order({"name": "amount", "type": "string"}))
        await window.run(f"document.getElementById('candidate').value = {candidate}")
        await window.run("document.querySelector('form button[type=submit]').click()")
        await window.until("check-result", "Not compatible", "amount")
        await window.run(
            "document.getElementById('candidate').value = '{'; document.querySelector('form button').click()"
        )
        await window.until("check-result", "Not c")
        complaints = [line for line in await window.complaints() if "404" not in line]  # of settings that are not set
        assert complaints == []


async def test_fields_that_are_too_many_or_have_long_names_are_not_said_to_be_equal(window: Window) -> None:
    def inner(name: str, kind: str) -> dict[str, Any]:
        return {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": name, "type": kind}]}}

    many = [{"name": f"f{number}", "type": "int"} for number in range(20_001)]
    long_name = {"name": "n" * 100_000, "type": inner("a", "int")["type"] | {"fields": many[:1000]}}
    async with registry() as shown:
        await shown.register("many", order(*many, inner("a", "int")))
        await shown.register("many", order(*many, inner("a", "long")))
        await shown.register("long", order(long_name))
        await shown.register("long", order(long_name, {"name": "b", "type": "int", "default": 1}))
        for subject in ("many", "long"):
            await show(window, shown.page(subject))
            content = await window.until("content", "Version 2", "compare the lines")
            assert "No field differs" not in content


async def test_hostile_names_and_texts_are_shown_and_do_nothing(window: Window) -> None:
    async def topics() -> dict[str, Any]:
        return {"error": f"refused: {HOSTILE}"}

    async with registry(ask_topics=topics) as shown:
        subject = f"of {HOSTILE}/?#%2F&\u202e"
        field = {"name": "a", "type": "string", "doc": f"{HOSTILE}\u202e"}
        await shown.register(subject, order())
        await shown.register(subject, order(field | {"default": HOSTILE}))
        await show(window, shown.page())
        await window.until("content", "refused: <script>", "The brokers did not tell")
        await window.until("subjects", "<script>")
        await window.run("document.querySelector('#subjects a').click()")
        content = await window.until("content", "Version 2", 'doc "<script>', "Differences")
        assert "\u202e" not in content
        candidate = json.dumps(order({"name": HOSTILE, "type": "string"}))
        await window.run(f"document.getElementById('candidate').value = {candidate}")
        await window.run("document.querySelector('form button').click()")
        await window.until("check-result", "Not c", "<script>")
        await show(window, shown.page(f"{HOSTILE} unknown"))
        await window.until("content", "<script>", "not found")
        assert await window.run("return document.querySelectorAll('body img, body script').length") == 0
        assert not (await window.run("return document.title")).startswith("caught")
        await window.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=\"//127.0.0.1:1/x\" onerror=alert(1)>')"
        )
        await window.until_true("document.images.length")
        assert any("Content Security Policy" in each for each in await window.complaints())


async def test_the_keyboard_is_enough_and_the_focus_is_seen(window: Window) -> None:
    async with registry() as shown:
        for name in ("apples-value", "orders-key", "orders-value"):
            for version in range(3):
                fields = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(version)]
                await shown.register(name, order(*fields))
        await show(window, shown.page())
        await window.until("matches", "3 subjects")
        focused = "document.activeElement.innerText"

        async def is_seen() -> bool:
            return bool(await window.run("return getComputedStyle(document.activeElement).outlineStyle === 'solid'"))

        await window.press("/", "order", Keys.ARROW_DOWN)
        assert await window.run(f"return {focused}") == "orders-key"
        assert await is_seen()
        await window.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
        await window.until_true("document.activeElement.tagName === 'H1'")
        assert await window.run(f"return {focused}") == "orders-value"
        await window.press(Keys.TAB)
        assert await window.run(f"return {focused}") == "3"
        await window.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        assert await is_seen()
        await window.press(Keys.ENTER)
        await window.until("content", "Version 1")
        seen = ["H1"]
        while seen[-1] != "TEXTAREA" and len(seen) < 20:
            await window.press(Keys.TAB)
            seen.append(await window.run("return document.activeElement.tagName"))
            assert await is_seen(), seen
        await window.press("/3", Keys.TAB, Keys.TAB, Keys.ENTER)
        await window.until("check-result", "Not c")
        assert await window.run("return document.getElementById('candidate').value") == "/3"


async def test_ten_thousand_subjects_are_searched_at_once(window: Window) -> None:
    events = [
        SchemaWritten(subject=f"team-{number % 7}.service-{number}-value", version=1, id=1, text='"string"')
        for number in range(SUBJECTS)
    ]
    async with registry(*events) as shown:
        await show(window, shown.page())
        await window.until("matches", "10,000 subjects, the first 200 are listed")
        taken_ms = await window.run(
            """
            const search = document.getElementById("search"), began = performance.now();
            search.value = "SERVICE-777";
            search.dispatchEvent(new Event("input"));
            document.getElementById("subjects").getBoundingClientRect();
            return performance.now() - began;
            """
        )
        assert taken_ms < MAX_SEARCH_MS
        await window.until("matches", "11 subjects")
        await window.run("document.getElementById('search').value = ''; document.getElementById('deleted').click()")
        await window.run("document.getElementById('more').click()")
        await window.until("matches", "the first 400 are listed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_names_roles_contrast_and_width(window: Window, scheme: str) -> None:
    async with registry() as shown:
        await shown.register("a-very-long-name-of-a-subject-of-one-of-the-many-services-of-the-company-value", order())
        await shown.register("orders-value", order())
        await shown.register("orders-value", order({"name": "a", "type": "int", "default": 0}))
        await shown.http.delete("/subjects/orders-value/versions/1")
        await window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for width in (1280, 360):
            await window.command(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            for url in (shown.page(), shown.page("orders-value")):
                await show(window, url)
                await window.until("matches", "2 subjects")
                if "orders" in url:
                    await window.run("document.getElementById('candidate').value = '\"int\"'")
                    await window.run("document.querySelector('form button').click()")
                    await window.until("check-result", "Not c")
                lowest = await window.run(CONTRASTS)
                assert lowest[0][0] >= MIN_CONTRAST, lowest
                wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
                assert not await window.run(f"return {wide}")
                nameless = "a, button, input, select, textarea, nav, [role=region], [tabindex='0'], h1, h2, h3, th"
                assert await window.nameless(nameless) == []
                levels = await window.run("return [...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])")
                assert levels[0] == 1
                assert levels.count(1) == 1
                assert all(after - before <= 1 for before, after in pairwise(levels))
                ids = await window.run("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
                assert len(ids) == len(set(ids))
        await window.command("Emulation.clearDeviceMetricsOverride")
        assert await window.run("return document.documentElement.lang") == "en"


async def test_a_replica_that_never_reached_its_writers_is_said_to_be_unproven(window: Window) -> None:
    async with serving_registry(MemoryJournal(), is_copy=True) as url:
        await show(window, f"{url}/ui/")
        await window.until("state", "not proven to be complete")


async def test_a_registry_that_does_not_answer_is_said(window: Window) -> None:
    async with registry() as shown:
        await shown.register("orders-value", order())
        await show(window, shown.page("orders-value"))
        await window.run("window.fetch = () => Promise.reject(new Error('cut off'))")
        await window.run("document.getElementById('reload').click()")
        await window.until("trouble", "The registry does not answer: cut off")
        await window.until("state", "No answer since")
        await window.until_true("!document.querySelector('main[aria-busy]')")
        assert "Version 1" in await window.text("content")
        await window.until_true("document.body.classList.contains('old')")
        assert "complete" not in await window.text("state")


async def test_a_silent_registry_is_never_said_to_be_complete(window: Window) -> None:
    async with registry() as shown:
        await shown.register("orders-value", order())
        await show(window, shown.page("orders-value"))
        await window.until("state", "epoch 1", "complete", "read at")
        hangs = "window.answers = window.fetch; window.fetch = () => new Promise(() => {})"
        await window.run(f"{hangs}; const now = Date.now; Date.now = () => now() + 6000")
        state = await window.until("state", "No answer since", " s ago: what is shown may be old", "read at")
        assert "complete" not in state
        await window.run("window.fetch = window.answers; document.getElementById('reload').click()")
        await window.until("state", "epoch 1", "complete")
        await window.until_true("!document.body.classList.contains('old')")
        await window.until_true("!document.querySelector('main[aria-busy]')")
        assert await window.run("return document.querySelectorAll('#state .bad').length") == 0
        await window.run("const before = Date.now; Date.now = () => before() + 61000; 0")
        await window.until("state", "ago: reload")


async def test_an_old_proof_and_brokers_that_are_away_are_marked(window: Window) -> None:
    async with registry() as shown:
        await show(window, shown.page())
        await window.run(
            """
            window.answers = window.fetch;
            const old = { writer: null, staleness_s: 11 };
            window.fetch = async (path, more) => path === "../journal" ? Response.json(old) : answers(path, more);
            """
        )
        await window.until("state", "no writer yet", "complete 11 s ago")
        assert "complete 11 s ago" in await window.run("return document.querySelector('#state .bad').innerText")
        await window.run(
            """
            const away = { error_code: 50001, message: "the brokers are away" };
            window.fetch = async (path, more) =>
              path === "../journal" ? Response.json(away, { status: 500 }) : answers(path, more);
            """
        )
        await window.until("state", "the brokers are away", "complete")
        assert await window.run("return document.querySelectorAll('#state .bad').length") == 2
