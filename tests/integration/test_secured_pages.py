"""Pages of a service with TLS and users in a real Chromium, and pages of others that try to use them."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from selenium.webdriver import Chrome
from starlette.responses import HTMLResponse
from starlette.routing import Route

from pipeline.model import HostPort
from pipeline.net.http.protection import HttpProtection
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.server import http_application, serve_http
from pipeline.testing.memory_journal import MemoryJournal
from tests.integration.test_secured_services import SERVICES
from tests.support.brokers import serving_cluster
from tests.support.browser import Window, chromium
from tests.support.registry import serving_registry
from tests.support.secured_http import PASSWORDS, basic, http_files

pytestmark = pytest.mark.long

ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": []})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium"), "--ignore-certificate-errors") as started:
        yield started


@pytest.fixture
def window(browser: Chrome) -> Window:
    return Window(browser)


@asynccontextmanager
async def registry(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    files = http_files(folder)
    async with (
        serving_registry(MemoryJournal(), **files.settings) as url,
        httpx.AsyncClient(base_url=url, verify=files.context, headers=basic("admin"), timeout=60) as http,
    ):
        path = "/subjects/orders-value/versions"
        (await http.post(path, json={"schema": ORDER})).raise_for_status()
        yield http


async def log_in(window: Window, url: httpx.URL, name: str) -> None:
    """Have the browser keep a user's password, as one that is asked for, and open a page."""
    await window.open(str(url.copy_with(username=name, password=PASSWORDS[name])))
    await window.open(str(url))


async def test_a_page_shows_everything_to_a_user_and_nothing_to_strangers(tmp_path: Path, window: Window) -> None:
    async with registry(tmp_path) as http:
        url = http.base_url.join("/ui/")
        await window.open(str(url))
        assert "Order" not in str(await window.run("return document.documentElement.outerHTML"))
        await log_in(window, url, "reader")
        await window.until_true("document.querySelector('main h1') && !document.querySelector('main[aria-busy]')")
        await window.until_true("document.body.innerText.includes('orders-value')")
        assert await window.run("return isSecureContext")
        assert await window.complaints() == []
        await window.run("location.hash = '#/subjects/orders-value'")
        await window.until_true("document.body.innerText.includes('Order')")
        assert not any("Content Security Policy" in text for text in await window.complaints())
        assert await inline_script_runs(window) is False
        assert any("Content Security Policy" in text for text in await window.complaints())


async def inline_script_runs(window: Window) -> bool:
    """Try to run a script in the page, as text that was not escaped would."""
    await window.run(
        "const script = document.createElement('script'); script.textContent = 'window.caught = true';"
        "document.body.append(script);"
    )
    return bool(await window.run("return Boolean(window.caught)"))


@asynccontextmanager
async def page_of_somebody_else(html: str, folder: Path) -> AsyncIterator[str]:
    """A page at another port of the same host, by TLS: as near to the registry as a page of others can be."""
    tls = HttpProtection(HttpSecurity.from_settings({"http.ssl.keystore.location": str(folder / "server.pem")})).tls

    async def page(_request: Any) -> HTMLResponse:
        return HTMLResponse(html)

    async with trio.open_nursery() as nursery:
        application = http_application([Route("/", page)])
        serve = partial(serve_http, tls=lambda: tls)
        yield f"https://{await nursery.start(serve, application, HostPort('127.0.0.1', 0))}/"
        nursery.cancel_scope.cancel()


async def test_a_page_of_somebody_else_neither_frames_nor_changes_nor_reads(tmp_path: Path, window: Window) -> None:
    async with registry(tmp_path) as http:
        await log_in(window, http.base_url.join("/ui/"), "admin")
        await window.until_true("document.body.innerText.includes('orders-value')")
        target = str(http.base_url).rstrip("/")
        html = f"""
            <iframe id="frame" src="{target}/ui/"></iframe>
            <script>
              const send = (path, options) => fetch("{target}" + path, {{credentials: "include", ...options}})
                .then(answer => answer.type === "opaque" ? "opaque" : answer.text(), () => "refused");
              const body = new Blob(['{{"schema": "\\\\"string\\\\""}}']);
              window.done = Promise.all([
                send("/subjects/evil/versions", {{method: "POST", mode: "no-cors", body}}),
                send("/subjects/evil/versions", {{method: "POST", body}}),
                send("/subjects/orders-value", {{method: "DELETE"}}),
                send("/subjects", {{}}),
              ]).then(found => {{ window.found = found; }});
            </script>
            <form id="form" method="post" enctype="text/plain" target="other" action="{target}/subjects/evil/versions">
              <input name='{{"schema": "\\"string\\"", "a": "' value='"}}'>
            </form>
        """
        async with page_of_somebody_else(html, tmp_path) as url:
            await window.open(url)
            await window.until_true("window.found")
            found = await window.run("return window.found")
            assert found[1:] == ["refused"] * 3
            assert found[0] in {"opaque", "refused"}
            await window.run("document.getElementById('form').submit()")
            await window.until_true("document.getElementById('frame').contentDocument === null")
            refusals = " ".join(await window.complaints())
            assert "frame-ancestors" in refusals
        assert (await http.get("/subjects")).json() == ["orders-value"]


@pytest.mark.parametrize("name", ["audit", "mirror"])
async def test_pages_of_audit_and_mirror_show_their_documents_to_a_user(
    name: str, tmp_path: Path, window: Window
) -> None:
    files = http_files(tmp_path)
    async with serving_cluster(tmp_path / "logs") as cluster, trio.open_nursery() as nursery:
        start, _ = SERVICES[name]
        address = await nursery.start(start(cluster, {"http.listen": "127.0.0.1:0", **files.settings}))
        url = httpx.URL(f"https://{address}/")
        await window.open(str(url))
        assert not await window.run("return document.scripts.length")
        await log_in(window, url, "reader")
        asked = "performance.getEntriesByType('resource').filter(each => each.name.includes('/v1/'))"
        await window.until_true(f"{asked}.some(each => each.responseStatus === 200)")
        assert not await window.run(f"return {asked}.some(each => each.responseStatus === 401)")
        assert not any("Content Security Policy" in text for text in await window.complaints())
        nursery.cancel_scope.cancel()
