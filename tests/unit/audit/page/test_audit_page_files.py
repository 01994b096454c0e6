"""Files of the audit's page: all are served, and none is named that does not exist."""

import re
from pathlib import Path

import httpx
import pytest

from pipeline.audit.page.audit_page import FILES, SCRIPTS, audit_page_routes
from pipeline.net.http.server import http_application

STATIC = Path(__file__).parents[4] / "pipeline" / "audit" / "page" / "static"


def test_every_file_of_the_folder_has_a_route() -> None:
    assert sorted(path.name for path in STATIC.iterdir()) == sorted(name for name, _ in FILES.values())


def test_the_page_loads_all_scripts_at_once() -> None:
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    preloaded = re.findall(r'rel="modulepreload" href="([a-z_]+\.js)"', index)
    assert sorted([*preloaded, "page.js"]) == sorted(SCRIPTS)


def test_scripts_import_files_that_exist() -> None:
    for name in SCRIPTS:
        for imported in re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text(encoding="utf-8")):
            assert imported in SCRIPTS, name


@pytest.mark.parametrize("path", sorted(FILES))
async def test_each_file_comes_with_its_type_and_the_policy(path: str) -> None:
    transport = httpx.ASGITransport(http_application(audit_page_routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://audit") as http:
        answer = await http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{FILES[path][1]}; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_no_script_makes_markup_out_of_text() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|setAttribute\(.on"
    )
    for path in STATIC.glob("*.js"):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path.name
