"""Any requests of the API's words, in any order: no answer is an internal error, and every refusal has a code."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry_api import BASE, INT, LONG, REFERENCE, USER

SUBJECTS = (
    "s",
    "t",
    ":.c:s",
    ":.:t",
    ":.c:",
    ":.c",
    ":*:s",
    "a%2Fb",
    "%20",
    "%FF",
    ":",
    "__GLOBAL",
    ":.__GLOBAL:",
    "base",
)
VERSIONS = ("1", "2", "latest", "-1", "0", "x", "99999999999", "%31", "1.0")
IDS = ("0", "1", "2", "-1", "x", "99999999999", "00000000-0000-0000-0000-000000000000")
VALUES = ("true", "false", "", "1", "-1", "0", "x", "s", ":.c:", ":*:", ":.c", "9" * 30, "resolved", "qualified", "%00")
NAMES = (
    "deleted",
    "deletedOnly",
    "deletedAsNegative",
    "permanent",
    "normalize",
    "verbose",
    "force",
    "recursive",
    "defaultToGlobal",
    "subject",
    "subjectPrefix",
    "contextPrefix",
    "latestOnly",
    "offset",
    "limit",
    "fetchMaxId",
    "format",
    "referenceFormat",
    "key",
    "value",
)
REQUESTS = (
    "GET /subjects",
    "POST /subjects/S",
    "DELETE /subjects/S",
    "GET /subjects/S/metadata",
    "GET /subjects/S/versions",
    *["POST /subjects/S/versions"] * 4,
    "GET /subjects/S/versions/V",
    "DELETE /subjects/S/versions/V",
    "GET /subjects/S/versions/V/schema",
    "GET /subjects/S/versions/V/referencedby",
    "GET /schemas",
    "GET /schemas/ids/I",
    "GET /schemas/ids/I/schema",
    "GET /schemas/ids/I/subjects",
    "GET /schemas/ids/I/versions",
    "GET /schemas/guids/I",
    "GET /schemas/guids/I/ids",
    "POST /compatibility/subjects/S/versions",
    "POST /compatibility/subjects/S/versions/V",
    "GET /config/S",
    "PUT /config/S",
    "DELETE /config/S",
    "PUT /config",
    "GET /mode/S",
    "PUT /mode/S",
    "PUT /mode",
    "DELETE /mode/S",
    "DELETE /mode",
    "DELETE /contexts/.c",
    "GET /contexts",
)
ODD: tuple[Any, ...] = (None, True, 0, -1, 1, 7, 1 << 40, 1.5, "", "x", "\ud800", [], {}, [[]], [None], {"a": 1})
BODY: dict[str, tuple[Any, ...]] = {
    "schema": (INT, LONG, BASE, USER, "{", *ODD),
    "schemaType": ("AVRO", "JSON", *ODD),
    "references": ([REFERENCE], [REFERENCE, {**REFERENCE, "version": -1}], [{**REFERENCE, "name": "\ud800"}], *ODD),
    "id": ODD,
    "version": ODD,
    "metadata": ODD,
    "compatibility": ("NONE", "full", *ODD),
    "normalize": ODD,
    "alias": ("s", ":.c:t", *ODD),
    "mode": ("IMPORT", "READWRITE", "READONLY", *ODD),
}


def body_of_request(random: Random) -> bytes:
    if random.random() < 0.05:
        return random.choice([b"", b"[]", b"{", b"null", b"\xff", b'"x"', b"[" * 5000])
    usual: dict[str, Any] = random.choice(
        [{"schema": INT}, {"schema": USER, "references": [REFERENCE]}, {"schema": BASE}, {}]
    )
    odd = {name: random.choice(BODY[name]) for name in random.sample(sorted(BODY), random.choice([0, 0, 1, 1, 3]))}
    return json.dumps({**usual, **odd}).encode()


def any_request(random: Random) -> tuple[str, str, bytes | None]:
    method, _, path = random.choice(REQUESTS).partition(" ")
    parts = [
        random.choice({"S": SUBJECTS, "V": VERSIONS, "I": IDS}[part]) if part in {"S", "V", "I"} else part
        for part in path.split("/")
    ]
    path = "/".join(parts)
    if random.random() < 0.1:
        path = f"/contexts/{random.choice(['.c', 'c', ':.c:', '.', ':', 'a%3Ab', '%20'])}{path}"
    if random.random() < 0.5:
        query = "&".join(
            f"{name}={random.choice(VALUES)}" for name in random.sample(NAMES, random.choice([1, 1, 2, 4]))
        )
        path = f"{path}?{query}"
    return method, path, body_of_request(random) if method in {"POST", "PUT"} else None


async def ask_anything(http: Any, journal: MemoryJournal, seed: int, count: int) -> None:
    random = Random(seed)
    for number in range(count):
        method, path, body = any_request(random)
        response = await http.request(method, path, content=body)
        asked = seed, number, method, path, body
        assert response.status_code in {200, 204, 400, 404, 405, 409, 422}, (asked, response.text)
        if response.status_code >= 400:
            assert set(response.json()) == {"error_code", "message"}, asked
            assert str(response.json()["error_code"]).startswith(str(response.status_code)), asked
        if number % 20 == 0:
            for mode in ("/mode", "/mode/s", "/mode/t", "/mode/base"):
                await http.request("DELETE", mode)


@pytest.mark.parametrize("seed", range(2))
async def test_no_request_is_an_internal_error(
    journal: MemoryJournal, open_registry: Callable[..., Any], seed: int
) -> None:
    async with open_registry(journal) as http:
        await ask_anything(http, journal, seed, 300)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
async def test_no_request_of_many_is_an_internal_error(
    journal: MemoryJournal, open_registry: Callable[..., Any], seed: int
) -> None:
    async with open_registry(journal) as http:
        await ask_anything(http, journal, seed, 4_000)
