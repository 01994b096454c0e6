"""Certificates of clients, and of a server that publishes keys, as an HTTP server takes them."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from pipeline.cli.secured.certificates import Authority, KeyPair
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http import attempts as http_attempts
from pipeline.net.http import protection as http_protection
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.users import Role, certificate_entry
from pipeline.settings import parse_addresses
from tests.support.secured_http import HttpFiles, basic, users_text
from tests.support.token_authority import TokenAuthority
from tests.unit.net.http.test_service import DEADLINE_S, FREE, client, serving, until_status

RULES = "RULE:^CN=([^,]+).*$/$1/L"
NAMES = {"reader": Role.READ, "writer": Role.WRITE, "chief": Role.ADMIN}


@dataclass
class Clients:
    """An authority of clients' certificates, and the settings of a server that trusts it."""

    files: HttpFiles
    folder: Path
    authority: Authority

    def settings(self, auth: str = "requested", **more: str) -> dict[str, Any]:
        return {
            **self.files.settings,
            "http.ssl.client.auth": auth,
            "http.ssl.truststore.location": str(self.folder / "clients.pem"),
            "http.ssl.principal.mapping.rules": RULES,
            **more,
        }

    def context(self, name: str, pair: KeyPair | None = None) -> ssl.SSLContext:
        """Context of a client with a certificate of this name."""
        made = pair or self.authority.issue(name, unit="logs")
        file = self.folder / f"{name}.pem"
        file.write_text(made.key + made.certificate)
        context = ssl.create_default_context(cafile=str(self.files.ca))
        context.load_cert_chain(file)
        return context

    def connected(self, address: HostPort, context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"https://{address}", verify=context, timeout=DEADLINE_S)


@pytest.fixture
def clients(files: HttpFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    made = Clients(files, tmp_path, Authority())
    (tmp_path / "clients.pem").write_text(made.authority.certificate)
    files.users.write_text(users_text() + "".join(f"{certificate_entry(*each)}\n" for each in NAMES.items()))
    return made


@asynccontextmanager
async def asking(clients: Clients, name: str, **more: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(clients.settings(**more)) as address,
        clients.connected(address, clients.context(name)) as http,
    ):
        yield http


def counts(text: str) -> dict[str, float]:
    """Counts of logins that are not 0, as they stand on the page."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("pipeline_http_logins")]
    return {name: float(value) for name, _, value in lines if float(value) and "_total" in name}


async def test_a_certificate_gives_the_role_of_its_user(clients: Clients) -> None:
    async with serving(clients.settings()) as address:
        for name, statuses in {"reader": (200, 403, 403), "Writer": (200, 200, 403), "chief": (200, 200, 200)}.items():
            async with clients.connected(address, clients.context(name)) as http:
                seen = await http.get("/things")
                assert seen.json()["user"] == name.lower()
                posted, deleted = await http.post("/things"), await http.delete("/things/a")
                assert (seen.status_code, posted.status_code, deleted.status_code) == statuses


async def test_a_certificate_without_a_role_lets_nobody_in(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    """Also that of an administrator with a password, whose entry says nothing of certificates."""
    async with serving(clients.settings()) as address:
        for name in ("admin", "stranger"):
            async with clients.connected(address, clients.context(name)) as http:
                assert (await http.get("/things")).status_code == 401
                assert (await http.get("/things", headers=basic("reader"))).json()["user"] == "reader"
        async with clients.connected(address, clients.context("reader")) as http:
            text = (await http.get("/metrics")).text
            assert counts(text) == {'pipeline_http_logins_failed_total{method="certificate",service="things"}': 2}
    assert "http_certificate_refused" in caplog.text
    assert "stranger" in caplog.text


async def test_a_certificate_does_not_mend_a_wrong_password(clients: Clients) -> None:
    async with asking(clients, "chief") as http:
        for wrong in ({"Authorization": "Bearer no"}, basic("reader", "no"), {"Authorization": "Digest x"}):
            assert (await http.get("/things", headers=wrong)).status_code == 401
        two = [("Authorization", "Bearer no"), ("Authorization", "Bearer no")]
        assert (await http.get("/things", headers=two)).status_code == 401
        assert (await http.get("/things", headers=basic("reader"))).json()["user"] == "reader"
        of = 'pipeline_http_logins_failed_total{{method="{}",service="things"}}'
        assert counts((await http.get("/metrics")).text) == {
            of.format("token"): 1,
            of.format("password"): 1,
            of.format("other"): 2,
        }


async def test_without_a_certificate_a_password_is_as_good(clients: Clients) -> None:
    async with serving(clients.settings()) as address, clients.connected(address, clients.files.context) as http:
        assert (await http.get("/things")).status_code == 401
        assert (await http.get("/things", headers=basic("writer"))).status_code == 200
        text = (await http.get("/metrics", headers=basic("writer"))).text
        assert counts(text) == {'pipeline_http_logins_refused_total{method="none",service="things"}': 1}


@pytest.mark.parametrize("auth", ["requested", "required"])
async def test_certificates_that_nobody_trusts_or_that_have_ended_end_the_connection(
    clients: Clients, auth: str
) -> None:
    ended = clients.authority.issue("chief", ends=datetime.now(UTC) - timedelta(minutes=1))
    wrong = {"foreign": Authority().issue("chief"), "ended": ended, "self": clients.files.authority.issue("chief")}
    async with serving(clients.settings(auth)) as address:
        for name, pair in wrong.items():
            async with clients.connected(address, clients.context(name, pair)) as http:
                with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.WriteError)):
                    await http.get("/things", headers=basic("admin"))
        async with clients.connected(address, clients.context("reader")) as http:
            text = (await http.get("/metrics")).text
            assert counts(text) == {'pipeline_http_logins_failed_total{method="certificate",service="things"}': 3}


async def test_where_certificates_are_required_nobody_comes_without(clients: Clients) -> None:
    async with serving(clients.settings("required", **{"http.authentication.skip.paths": "/healthz"})) as address:
        async with clients.connected(address, clients.files.context) as http:
            with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.WriteError)):
                await http.get("/healthz", headers=basic("admin"))
        async with clients.connected(address, clients.context("stranger")) as http:
            assert (await http.get("/things")).status_code == 401
            assert (await http.get("/things", headers=basic("reader"))).status_code == 200


async def test_the_port_of_the_metrics_asks_for_no_certificate(clients: Clients) -> None:
    with capture_logs() as logs:
        async with serving(clients.settings("required", **{"http.metrics.listen": str(FREE)})):
            (told,) = [each["address"] for each in logs if each["event"] == "metrics_served"]
            (address,) = parse_addresses(told)
            async with clients.connected(address, clients.files.context) as http:
                assert (await http.get("/metrics")).status_code == 200


async def test_a_server_may_ask_for_certificates_alone(clients: Clients) -> None:
    settings = clients.settings("required")
    del settings["http.users.file"]
    async with serving(settings) as address:
        async with clients.connected(address, clients.context("stranger")) as http:
            assert (await http.post("/things")).status_code == 200
        async with clients.connected(address, clients.files.context) as http:
            with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.WriteError)):
                await http.get("/things")


async def test_a_user_who_was_removed_is_out_on_the_open_connection(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protection, "LOOK_S", 0.01)
    async with asking(clients, "chief") as http:
        assert (await http.get("/things")).status_code == 200
        clients.files.users.write_text(users_text())
        await until_status(http, 401, {})


async def test_an_authority_that_was_replaced_is_trusted_no_more(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protection, "LOOK_S", 0.01)
    async with serving(clients.settings()) as address:
        context = clients.context("chief")
        async with clients.connected(address, context) as http:
            assert (await http.get("/things")).status_code == 200
        (clients.folder / "clients.pem").write_text(Authority().certificate)
        with trio.fail_after(DEADLINE_S), pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.WriteError)):
            while True:
                async with clients.connected(address, context) as http:
                    await http.get("/things")


async def test_a_page_of_another_origin_changes_nothing_by_the_certificate_of_a_browser(clients: Clients) -> None:
    async with asking(clients, "chief") as http:
        assert (await http.post("/things", headers={"Origin": "https://evil.example"})).status_code == 403
        assert (await http.post("/things", headers={"Origin": str(http.base_url).rstrip("/")})).status_code == 200


async def test_a_token_does_not_outlive_its_key(files: HttpFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    monkeypatch.setattr(http_protection, "REFRESH_S", 0.01)
    authority = TokenAuthority()
    for key in ("old", "new"):
        authority.add(key)
    claims = {"sub": "alice", "aud": "pipeline", "exp": time.time() + 600, "scope": "read"}
    old, new = ({"Authorization": f"Bearer {authority.token(key, **claims)}"} for key in ("old", "new"))
    with authority.serving() as url:
        keys = {"http.oauthbearer.jwks.endpoint.url": f"{url}/keys", "http.oauthbearer.expected.audience": "pipeline"}
        async with client(files, **keys) as http:
            for headers in (old, new, old):
                assert (await http.get("/things", headers=headers)).status_code == 200
            del authority.keys["old"]
            await until_status(http, 401, old)
            assert (await http.get("/things", headers=new)).status_code == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"http.ssl.truststore.location": "/none"}, "http.ssl.client.auth: is missing"),
        ({"http.ssl.client.auth": "required"}, "http.ssl.keystore.location: is missing"),
        (
            {"http.ssl.client.auth": "required", "http.ssl.keystore.location": "/none"},
            "http.ssl.truststore.location: is missing",
        ),
        (
            {
                "http.ssl.client.auth": "requested",
                "http.ssl.keystore.location": "/none",
                "http.ssl.truststore.location": "/none",
            },
            "http.users.file: is missing",
        ),
    ],
)
def test_settings_by_which_no_certificate_would_count(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        HttpSecurity.from_settings(settings)


async def test_keys_of_an_authority_whose_server_has_a_private_certificate(
    files: HttpFiles, caplog: pytest.LogCaptureFixture
) -> None:
    authority = TokenAuthority(keystore=files.keystore)
    authority.add("a")
    token = authority.token("a", sub="alice", aud="pipeline", exp=time.time() + 600, scope="read")
    with authority.serving() as url:
        keys = {"http.oauthbearer.jwks.endpoint.url": f"{url}/keys", "http.oauthbearer.expected.audience": "pipeline"}
        for more, status in (({"http.oauthbearer.ssl.truststore.location": str(files.ca)}, 200), ({}, 401)):
            async with client(files, **keys, **more) as http:
                assert (await http.get("/things", headers={"Authorization": f"Bearer {token}"})).status_code == status
    assert "nobody who is trusted has signed" in caplog.text
    assert "http.oauthbearer.ssl.truststore.location names who is trusted" in caplog.text
