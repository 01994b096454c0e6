"""A real Chromium without a window, of the system or of Debian's packages below `.cache` (tests/support/install.sh)."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

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
