"""An HTTP server with TLS, users and roles, as clients see it."""

import random
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import jwt
import pytest
import trio
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http import attempts as http_attempts
from pipeline.net.http import protection as http_protection
from pipeline.net.http.roles import OPERATIONS_ROLES, RoleTable, UnlistedRouteError, guarded, http_user_of
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity
from pipeline.net.http.server import http_application, operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.http.users import PasswordEntry, Role
from tests.support.secured_http import PASSWORDS, TOKEN, HttpFiles, basic
from tests.support.token_authority import TokenAuthority

DEADLINE_S = 30
FREE = HostPort("127.0.0.1", 0)
ROLES: RoleTable = {
    ("GET", "/things"): Role.READ,
    ("POST", "/things"): Role.WRITE,
    ("DELETE", "/things/{name}"): Role.ADMIN,
    ("POST", "/echo"): Role.READ,
}


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def things(request: Request) -> Response:
    user = http_user_of(request.scope)
    return JSONResponse({"user": None if user is None else user.name, "scheme": request.url.scheme})


def routes() -> list[Route]:
    return [
        Route("/things", things, methods=["GET", "POST"]),
        Route("/things/{name}", things, methods=["DELETE"]),
        Route("/echo", echo, methods=["POST"]),
    ]


def things_service() -> HttpService:
    metrics = CollectorRegistry()
    served = [*routes(), *operations_routes(metrics, lambda: None)]
    return HttpService(name="things", routes=served, roles=ROLES, metrics=metrics)


@asynccontextmanager
async def serving(settings: dict[str, Any]) -> AsyncIterator[HostPort]:
    service = things_service()
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_service, service, FREE, HttpSecurity.from_settings(settings))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(files: HttpFiles, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(files.settings | more) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=files.context, timeout=DEADLINE_S) as http,
    ):
        yield http


async def test_each_role_may_do_what_it_includes_and_no_more(files: HttpFiles) -> None:
    requests = {"reader": ("GET", "/things"), "writer": ("POST", "/things"), "admin": ("DELETE", "/things/a")}
    async with client(files) as http:
        for may, name in enumerate(requests):
            for needed, (method, path) in enumerate(requests.values()):
                answer = await http.request(method, path, headers=basic(name))
                assert answer.status_code == (200 if may >= needed else 403), (name, method)
                if answer.status_code == 200:
                    assert answer.json() == {"user": name, "scheme": "https"}


async def test_a_token_is_as_good_as_a_password(files: HttpFiles) -> None:
    async with client(files) as http:
        for scheme in ("Bearer", "bearer", "BEARER"):
            answer = await http.post("/things", headers={"Authorization": f"{scheme} {TOKEN}"})
            assert answer.json()["user"] == "ci"


async def test_tokens_of_an_authority_let_their_users_in_until_they_end(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    now_ms = [int(time.time() * 1000)]
    monkeypatch.setattr(http_protection, "_wall_clock", lambda: now_ms[0])
    authority, stranger = TokenAuthority(), TokenAuthority()
    authority.add("a", "RS256")
    stranger.add("a", "RS256")

    def claims(scope: str, **more: Any) -> dict[str, Any]:
        return {"sub": "alice", "aud": "pipeline", "iss": "us", "exp": now_ms[0] // 1000 + 60, "scope": scope} | more

    refused = [
        stranger.token("a", **claims("admin")),
        authority.token("a", **claims("admin", aud="another")),
        authority.token("a", **claims("admin", iss="others")),
        authority.token("a", **claims("admin", exp=now_ms[0] // 1000 - 60)),
        authority.token("a", **claims("administrator reader WRITE")),
        authority.token("a", **claims("")),
        authority.token("a", **claims("admin", sub="a\nb")),
        jwt.encode(claims("admin"), "", algorithm="none"),
        authority.token("a", **claims("admin"))[:-2],
        TOKEN[:-1],
    ]
    with authority.serving() as url:
        keys = {
            "http.oauthbearer.jwks.endpoint.url": f"{url}/keys",
            "http.oauthbearer.expected.audience": "pipeline",
            "http.oauthbearer.expected.issuer": "us",
        }
        async with client(files, **keys) as http:

            async def status(token: str, method: str = "GET") -> int:
                answer = await http.request(method, "/things", headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code != 200 or answer.json()["user"] in {"alice", "ci"}
                return answer.status_code

            reader, writer = (authority.token("a", **claims(scope)) for scope in ("read other", "read write"))
            assert (await status(reader), await status(reader, "POST")) == (200, 403)
            assert (await status(writer), await status(writer, "POST")) == (200, 200)
            assert await status(TOKEN) == 200
            assert [await status(token) for token in refused] == [401] * len(refused)
            now_ms[0] += 95_000
            assert await status(reader) == 401


@pytest.mark.long
async def test_strangers_get_the_same_answer_for_everything(files: HttpFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    shown: list[dict[str, str]] = [
        {},
        basic("reader", "wrong"),
        basic("reader", ""),
        basic("nobody", "read it"),
        basic("", ""),
        {"Authorization": f"Bearer {TOKEN}0"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic"},
        {"Authorization": "Digest username=reader"},
        {"Authorization": ""},
        {"Authorization": basic("reader")["Authorization"] + " more"},
        basic("reader", "x" * 10_000),
    ]
    answers = set()
    async with unencrypted(files) as ask:
        for headers in shown:
            for method, path in (("GET", "/things"), ("GET", "/metrics"), ("GET", "/missing"), ("PATCH", "/things")):
                status, text, challenge = await ask(method, path, headers)
                assert "Basic" in challenge
                assert "Bearer" in challenge
                answers.add((status, text, bool(headers)))
    assert {status for status, _, _ in answers} == {401}
    assert len(answers) == 2, answers


@asynccontextmanager
async def unencrypted(files: HttpFiles, **more: Any) -> AsyncIterator[Any]:
    """A server without TLS; gives a function that sends a request and returns status, text and challenge."""
    service = things_service()
    security = HttpSecurity.from_settings({"http.users.file": str(files.users), **more})
    protection = http_protection.HttpProtection(security)
    guarded_routes = protection.guard(service.routes, {**OPERATIONS_ROLES, **service.roles})
    application = protection.around(http_application(guarded_routes))
    transport = httpx.ASGITransport(application, client=("192.0.2.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:

        async def ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
            answer = await http.request(method, path, headers=headers)
            return answer.status_code, answer.text, answer.headers.get("www-authenticate", "")

        yield ask


async def test_two_authorizations_are_none(files: HttpFiles) -> None:
    async with client(files) as http:
        header = basic("admin")["Authorization"]
        answer = await http.get("/things", headers=[("Authorization", header), ("Authorization", header)])
        assert answer.status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/metrics/",
        "//metrics",
        "/./metrics",
        "/%6detrics",
        "/metrics%2f",
        "/metrics;a=b",
        "/METRICS",
        "/metrics.",
        "/metrics%00",
        "/things/../metrics",
        "/metrics/../things",
        "/metrics/%2e%2e/things",
        "http://a/things",
        "*",
    ],
)
async def test_no_other_spelling_of_an_open_path_is_open(files: HttpFiles, path: str) -> None:
    async with serving(files.settings | {"http.authentication.skip.paths": "/metrics"}) as address:
        assert (await raw(files, address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        found = await raw(files, address, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode())
        assert found.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 ")), found


async def raw(files: HttpFiles, address: HostPort, data: bytes) -> bytes:
    """Return the first bytes of the answer to bytes."""
    stream = await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=files.context)
    with trio.fail_after(DEADLINE_S):
        await stream.send_all(data)
        found = bytes(await stream.receive_some())
    await trio.aclose_forcefully(stream)
    return found


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 16_384, 16_385, 100_000, 16 << 20])
async def test_bodies_of_any_size_pass_whole(files: HttpFiles, size: int) -> None:
    body = random.Random(size).randbytes(size)

    async def parts() -> AsyncIterator[bytes]:
        for first in range(0, size, 65_536):
            yield body[first : first + 65_536]

    async with client(files) as http:
        for content in (body, parts()):
            answer = await http.post("/echo", content=content, headers=basic("reader"))
            assert answer.content == body


async def test_metrics_have_a_port_of_their_own(files: HttpFiles) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = HostPort(*probe.getsockname())
    async with client(files, **{"http.metrics.listen": str(own)}) as http:
        for path in ("metrics", "healthz", "readyz"):
            assert (await http.get(f"https://{own}/{path}")).status_code == 200
            assert (await http.get(f"/{path}")).status_code == 401
            assert (await http.get(f"/{path}", headers=basic("admin"))).status_code == 404
        assert (await http.get(f"https://{own}/things")).status_code == 404


async def test_answers_bear_the_headers_of_a_protected_server(files: HttpFiles) -> None:
    async with client(files) as http:
        for answer in (await http.get("/things"), await http.get("/things", headers=basic("reader"))):
            headers = answer.headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["strict-transport-security"] == "max-age=31536000"
            assert headers["cache-control"] == "no-store"


async def test_a_server_without_protection_is_what_it_was() -> None:
    async with serving({}) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        answer = await http.get("/things")
        assert answer.json() == {"user": None, "scheme": "http"}
        assert set(answer.headers) == {"content-length", "content-type", "date"}


async def test_a_page_of_another_origin_changes_nothing(files: HttpFiles) -> None:
    async with client(files) as http:
        own = str(http.base_url).rstrip("/")
        for origin, status in ((own, 200), ("https://evil.example", 403), ("null", 403), (own.replace("s:", ":"), 403)):
            answer = await http.post("/things", headers=basic("writer") | {"Origin": origin})
            assert answer.status_code == status, origin
        assert (await http.get("/things", headers=basic("reader") | {"Origin": "null"})).status_code == 200


async def test_a_clear_text_client_gets_nothing_of_a_server_with_tls(files: HttpFiles) -> None:
    async with serving(files.settings) as address:
        stream = await trio.open_tcp_stream(address.host, address.port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            with trio.fail_after(DEADLINE_S):
                found = b""
                try:
                    while part := await stream.receive_some():
                        found += part
                except trio.BrokenResourceError:
                    pass
        assert b"HTTP" not in found


async def test_old_versions_of_tls_are_refused(files: HttpFiles) -> None:
    async with serving(files.settings) as address:
        context = files.context
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await handshakes(address, context)
        with pytest.warns(DeprecationWarning):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        assert not await handshakes(address, context)


async def handshakes(address: HostPort, context: ssl.SSLContext) -> bool:
    stream = await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=context)
    try:
        with trio.fail_after(DEADLINE_S):
            await stream.do_handshake()
    except trio.BrokenResourceError:
        return False
    finally:
        await trio.aclose_forcefully(stream)
    return True


async def test_files_that_changed_are_in_force_and_broken_ones_are_not(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protection, "LOOK_S", 0.01)
    async with client(files) as http:
        assert (await http.get("/things", headers=basic("reader"))).status_code == 200
        kept = files.users.read_text()
        files.users.write_text("\n".join(line for line in kept.splitlines() if not line.startswith("reader:")))
        await until_status(http, 401, basic("reader"))
        files.users.write_text("reader:read:$md5$damaged")
        files.keystore.write_text("nothing")
        files.renew("second")
        files.users.write_text(kept)
        await until_status(http, 200, basic("reader"))
        with trio.fail_after(DEADLINE_S):
            while await served_name(http, files) != "second":
                await trio.sleep(0.01)
        files.users.write_text("reader:read:$md5$damaged")
        files.keystore.write_text("nothing")
        for _ in range(20):
            assert (await http.get("/things", headers=basic("reader"))).status_code == 200
            await trio.sleep(0.01)
        assert await served_name(http, files) == "second"


async def until_status(http: httpx.AsyncClient, status: int, headers: dict[str, str]) -> None:
    with trio.fail_after(DEADLINE_S):
        while (await http.get("/things", headers=headers)).status_code != status:
            await trio.sleep(0.01)


async def served_name(http: httpx.AsyncClient, files: HttpFiles) -> str:
    """Return the common name of the certificate that new connections get."""

    def ask() -> str:
        url = http.base_url
        plain = socket.create_connection((url.host, url.port or 0))
        with plain, files.context.wrap_socket(plain, server_hostname=url.host) as encrypted:
            subject: Any = (encrypted.getpeercert() or {})["subject"]
            return str(subject[-1][0][1])

    return await trio.to_thread.run_sync(ask)


async def test_a_right_password_is_checked_once(files: HttpFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = count_checks(monkeypatch)
    async with client(files) as http, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(until_status, http, 200, basic("reader"))
    assert checks == ["reader"]


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    checks: list[str] = []
    lock, check = threading.Lock(), PasswordEntry.has

    def has(entry: PasswordEntry, password: bytes) -> bool:
        with lock:
            checks.append(entry.user.name)
        return check(entry, password)

    monkeypatch.setattr(PasswordEntry, "has", has)
    return checks


async def test_names_that_exist_take_the_same_steps_as_others(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    checks = count_checks(monkeypatch)
    async with client(files) as http:
        for name in ("reader", "nobody", "ci"):
            await http.get("/things", headers=basic(name, "wrong"))
    assert checks == ["reader", "", ""]


async def test_wrong_passwords_of_an_address_wait_for_each_other(
    files: HttpFiles, mock_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_attempts, "MAX_WAITING", 3)
    mock_clock.autojump_threshold = 0.2
    found: list[tuple[float, int]] = []
    async with unencrypted(files) as ask:

        async def guess(number: int) -> None:
            status, _, _ = await ask("GET", "/things", {"Authorization": f"Bearer {number}"})
            found.append((trio.current_time(), status))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(guess, number)
    late = [(time, status) for time, status in found if status == 401]
    assert sorted(status for _, status in found) == [401, 401, 401, 429, 429]
    assert [round(time - late[0][0], 3) for time, _ in late] == [0, http_attempts.FAILURE_PAUSE_S, 1.0]


async def test_what_was_shown_is_never_logged(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    async with client(files) as http:
        await http.get("/things", headers=basic("reader", "a secret"))
        await http.get("/things", headers=basic("a secret", "a secret"))
        await http.get("/things", headers={"Authorization": "Bearer a-secret"})
        await http.get("/things", headers=basic("reader"))
    written = caplog.text
    assert "http_login_refused" in written
    assert "secret" not in written
    assert PASSWORDS["reader"] not in written


async def test_the_log_says_who_changed_what_and_who_was_refused(
    files: HttpFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with client(files) as http:
        await http.get("/things", headers=basic("reader"))
        await http.post(f"/things?a=b%0a{'c' * 1000}", headers=basic("writer"))
        await http.delete("/things/a", headers=basic("writer"))
    lines = [line for line in caplog.text.splitlines() if "http_request" in line]
    assert len(lines) == 2
    assert "user='writer'" in lines[0]
    assert "method='POST'" in lines[0]
    assert "target='/things?a=b%0accc" in lines[0]
    assert "status=200 allowed=True" in lines[0].replace(", ", " ")
    assert len(lines[0]) < 600
    assert "target='/things/a'" in lines[1]
    assert "status=403 allowed=False" in lines[1].replace(", ", " ")


def test_a_route_without_a_role_is_not_served() -> None:
    with pytest.raises(UnlistedRouteError, match="POST /things"):
        guarded(routes(), {key: role for key, role in ROLES.items() if key[0] != "POST"})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"http.users.file": "/none"}, "http.users.file: /none cannot be read"),
        ({"http.ssl.keystore.location": "/none"}, "http.ssl.keystore.location"),
        ({"http.ssl.key.password": "x"}, "http.ssl.keystore.location: is missing"),
        ({"http.authentication.skip.paths": "/metrics"}, "http.users.file: is missing"),
        ({"http.users.file": "/none", "http.authentication.skip.paths": "/things"}, "skip.paths.*names /things"),
        ({"http.oauthbearer.jwks.endpoint.url": "https://a"}, "expected.audience: is missing"),
        ({"http.oauthbearer.jwks.endpoint.url": "ftp://a"}, "jwks.endpoint.url: must be a URL"),
        (
            {
                "http.oauthbearer.jwks.endpoint.url": "https://a",
                "http.oauthbearer.expected.audience": "a",
                "http.oauthbearer.ssl.truststore.location": "/none",
            },
            "http.oauthbearer.ssl.truststore.location: /none cannot be read",
        ),
        ({"http.ssl.keystore": "x"}, "http.ssl.keystore: is not a setting.*did you mean http.ssl.keystore.location"),
    ],
)
def test_errors_name_the_setting(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        http_protection.HttpProtection(HttpSecurity.from_settings(settings))


def test_without_settings_nothing_is_wrapped() -> None:
    protection = http_protection.HttpProtection(OPEN_HTTP)

    async def application(*_arguments: Any) -> None:
        raise NotImplementedError

    assert protection.around(application) is application
    assert protection.tls is None
