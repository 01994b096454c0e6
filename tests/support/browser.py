"""A real Chromium without a window, of the system or of Debian's packages below `.cache` (tests/support/install.sh)."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

UNPACKED = Path(__file__).resolve().parents[2] / ".cache" / "chromium"
PAGE_DEADLINE_S = 60
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root has no other way, and the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
)


@contextmanager
def chromium(directory: Path, *options: str, width: int = 1280, height: int = 1400) -> Iterator[Chrome]:
    """A browser that keeps its data in the directory. Whatever scripts log is in `get_log("browser")`."""
    chosen = ChromeOptions()
    chosen.binary_location = shutil.which("chromium") or str(UNPACKED / "usr/lib/chromium/chromium")
    for option in (*OPTIONS, f"--user-data-dir={directory / 'user'}", f"--window-size={width},{height}", *options):
        chosen.add_argument(option)
    chosen.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = shutil.which("chromedriver") or str(UNPACKED / "usr/bin/chromedriver")
    service = ChromeService(driver, env=_environment(directory))
    with Chrome(chosen, service) as browser:
        browser.set_page_load_timeout(PAGE_DEADLINE_S)
        browser.set_script_timeout(PAGE_DEADLINE_S)
        yield browser


def _environment(directory: Path) -> dict[str, str]:
    """Libraries and fonts of `.cache` come after the system's, which may have none."""
    directory.mkdir(exist_ok=True)
    folders = [f"<dir>{folder}/share/fonts</dir>" for folder in ("/usr", UNPACKED / "usr")]
    cache = f"<cachedir>{directory / 'fonts'}</cachedir>"
    (directory / "fonts.conf").write_text(f"<fontconfig>{''.join(folders)}{cache}</fontconfig>", encoding="utf-8")
    libraries = sorted({str(path.parent) for path in UNPACKED.rglob("lib*.so*")})
    present = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    return {
        **os.environ,
        "HOME": str(directory),
        "FONTCONFIG_FILE": str(directory / "fonts.conf"),
        "LD_LIBRARY_PATH": os.pathsep.join(present + libraries),
    }


class Window:
    """A page in the browser, asked from a thread so that its service goes on."""

    def __init__(self, browser: Chrome) -> None:
        self._browser = browser

    async def open(self, url: str) -> None:
        await self.complaints()  # forget what other tests logged
        await trio.to_thread.run_sync(self._browser.get, url)

    async def run(self, script: str) -> Any:
        return await trio.to_thread.run_sync(self._browser.execute_script, script)

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        await trio.to_thread.run_sync(ActionChains(self._browser).send_keys(*keys).perform)

    async def command(self, name: str, **parameters: Any) -> None:
        """Give Chromium a command of its DevTools."""
        await trio.to_thread.run_sync(self._browser.execute_cdp_cmd, name, parameters)

    async def nameless(self, selector: str) -> list[str]:
        """Elements that a screen reader cannot name."""

        def find() -> list[str]:
            found = self._browser.find_elements(By.CSS_SELECTOR, selector)
            return [
                str(each.get_attribute("outerHTML"))[:200]
                for each in found
                if each.is_displayed() and not each.accessible_name
            ]

        return await trio.to_thread.run_sync(find)

    async def text(self, element_id: str) -> str:
        return str(await self.run(f"return document.getElementById('{element_id}').innerText"))

    async def until(self, element_id: str, *wanted: str) -> str:
        """The text of an element once it holds all that is wanted."""
        deadline_s, found = time.monotonic() + PAGE_DEADLINE_S, ""
        while time.monotonic() < deadline_s:
            found = await self.text(element_id)
            if all(text in found for text in wanted):
                return found
            await trio.sleep(0.05)
        raise AssertionError(f"{element_id} shows {found!r}, not {wanted!r}")

    async def until_true(self, script: str) -> None:
        deadline_s = time.monotonic() + PAGE_DEADLINE_S
        while not await self.run(f"return Boolean({script})"):
            assert time.monotonic() < deadline_s, script
            await trio.sleep(0.05)

    async def complaints(self) -> list[str]:
        """What Chromium logged: errors of scripts, and what the page's policy forbade."""
        get_log: Callable[[str], list[dict[str, str]]] = self._browser.get_log
        entries = await trio.to_thread.run_sync(get_log, "browser")
        return [entry["message"] for entry in entries]
