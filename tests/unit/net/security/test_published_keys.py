"""Keys read from an HTTP server or a file, again and again; and tokens that clients ask for."""

import json
from functools import partial
from pathlib import Path
from time import time

import pytest
import trio
from structlog.testing import capture_logs

from pipeline.cli.secured.certificates import Authority
from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError, ConfigurationError
from pipeline.net.http.documents import document_path, fetch_document
from pipeline.net.security import published_keys
from pipeline.net.security.client_security import ClientSecurity
from pipeline.net.security.published_keys import PublishedKeys
from pipeline.net.security.tls_context import TlsTrust
from pipeline.net.security.token_source import TokenSource
from pipeline.net.security.web_tokens import TokenRules, UnknownKeyError
from tests.support.token_authority import CLIENT, CLIENT_SECRET, TokenAuthority

RULES = TokenRules()


def authority(*key_ids: str) -> TokenAuthority:
    made = TokenAuthority()
    for key_id in key_ids:
        made.add(key_id)
    return made


def token(of: TokenAuthority, key_id: str) -> str:
    return of.token(key_id, sub="alice", exp=time() + 60)


def now_ms() -> int:
    return int(time() * 1000)


async def eventually(keys: PublishedKeys, asked: str) -> None:
    """Wait until a token counts; as a client that tries again and again."""
    with trio.fail_after(60):
        while True:
            try:
                keys.verify(asked, RULES, now_ms())
            except UnknownKeyError:
                await trio.sleep(0.01)
            else:
                return


async def test_a_new_key_is_read_when_a_token_names_it(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    monkeypatch.setattr(published_keys, "MIN_REFRESH_S", 0.2)
    made = authority("first")
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", refresh_s=3600)
        await nursery.start(keys.run)
        assert keys.verify(token(made, "first"), RULES, now_ms()).subject == "alice"
        made.add("second")
        await eventually(keys, token(made, "second"))
        assert made.asked == ["/keys"] * 2


async def test_strangers_do_not_have_the_keys_read_more_often(nursery: trio.Nursery) -> None:
    made = authority("first")
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", refresh_s=3600)
        await nursery.start(keys.run)
        made.add("second")
        for _ in range(200):
            with pytest.raises(UnknownKeyError):
                keys.verify(token(made, "second"), RULES, now_ms())
            await trio.lowlevel.checkpoint()
        assert made.asked == ["/keys"]


async def test_known_keys_stay_while_the_document_is_missing_or_bad(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(published_keys, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(published_keys, "MAX_RETRY_S", 0.02)
    made = authority("first")
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", refresh_s=0.01)
        await nursery.start(keys.run)
        for bad in (b"<html>", b'{"keys": []}', b" " * 2_000_000):
            made.document, before = bad, len(made.asked)
            with trio.fail_after(60):
                while len(made.asked) < before + 3:
                    await trio.sleep(0.01)
            assert keys.verify(token(made, "first"), RULES, now_ms()).subject == "alice"
        made.document = None
        made.add("second")
        await eventually(keys, token(made, "second"))


async def test_a_token_of_a_key_that_was_withdrawn_counts_no_more(nursery: trio.Nursery) -> None:
    made = authority("first", "second")
    old = token(made, "first")
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", refresh_s=0.01)
        await nursery.start(keys.run)
        assert keys.verify(old, RULES, now_ms()).subject == "alice"
        del made.keys["first"]
        with trio.fail_after(60), pytest.raises(UnknownKeyError):
            while True:
                keys.verify(old, RULES, now_ms())
                await trio.sleep(0.01)
        assert keys.verify(token(made, "second"), RULES, now_ms()).subject == "alice"


async def test_a_start_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    monkeypatch.setattr(published_keys, "READ_S", 0.1)
    (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    keys = PublishedKeys(f"http://127.0.0.1:{silent.socket.getsockname()[1]}/keys", refresh_s=3600)
    with trio.fail_after(60):
        await nursery.start(keys.run)
    assert not len(keys.keys)
    await silent.aclose()


async def test_keys_of_a_file_follow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    monkeypatch.setattr(published_keys, "MAX_FILE_REFRESH_S", 0.01)
    made, path = authority("first"), tmp_path / "keys of us.json"
    path.write_text(json.dumps(made.jwks()))
    keys = PublishedKeys(path.as_uri(), refresh_s=3600)
    await nursery.start(keys.run)
    made.add("second")
    path.write_text(json.dumps(made.jwks()))
    await eventually(keys, token(made, "second"))


async def test_redirects_are_not_followed() -> None:
    made = authority("first")
    with made.serving() as url:
        with pytest.raises(ValueError, match="redirects"):
            await fetch_document(f"{url}/moved")
        with pytest.raises(OSError, match="404"):
            await fetch_document(f"{url}/nowhere")
    assert made.asked == ["/moved", "/nowhere"]


@pytest.mark.parametrize("url", ["", "keys", "ftp://x/y", "https://", "file:", "file://host/x", "http:///x"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        document_path(url)


async def test_a_client_asks_for_a_token_once_for_many_logins() -> None:
    made = authority("first")
    with made.serving(sub="alice") as url:
        source = TokenSource(f"{url}/token", CLIENT, Secret(CLIENT_SECRET), "read write")
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(source.find)
        assert (await source.find()).reveal().count(".") == 2
        assert made.forms == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]


async def test_a_token_that_cannot_be_had_is_an_error_without_secrets(tmp_path: Path) -> None:
    made = authority("first")
    (tmp_path / "token").write_text("two words")
    with made.serving(sub="alice") as url:
        for source in (
            TokenSource(f"{url}/token", CLIENT, Secret("wrong s3cret")),
            TokenSource(f"{url}/keys", CLIENT, Secret("wrong s3cret")),
            TokenSource((tmp_path / "none").as_uri()),
            TokenSource((tmp_path / "token").as_uri()),
        ):
            with pytest.raises(AuthenticationError, match="no token from") as refusal:
                await source.find()
            assert "s3cret" not in str(refusal.value)
            assert "two" not in str(refusal.value)


def private_authority(of: TokenAuthority, folder: Path, *names: str) -> Path:
    """Give the server a certificate of an authority that nobody knows; return the file of that."""
    private = Authority()
    pair = private.issue("keys", names or ("127.0.0.1",))
    keystore, trusted = folder / "server.pem", folder / "private-ca.pem"
    keystore.write_text(pair.key + pair.certificate)
    trusted.write_text(private.certificate)
    of.keystore = keystore
    return trusted


async def test_keys_behind_a_private_authority(tmp_path: Path, nursery: trio.Nursery) -> None:
    made = authority("first")
    trusted = private_authority(made, tmp_path)
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", 3600, TlsTrust(path=trusted))
        await nursery.start(keys.run)
        assert keys.verify(token(made, "first"), RULES, now_ms()).subject == "alice"
        unknown = PublishedKeys(f"{url}/keys", 3600, TlsTrust(setting="the.truststore"))
        with capture_logs() as logs:
            await nursery.start(unknown.run)
        with pytest.raises(UnknownKeyError):
            unknown.verify(token(made, "first"), RULES, now_ms())
    (told,) = [each for each in logs if each["event"] == "published_keys_unreadable"]
    assert "nobody who is trusted has signed the certificate" in told["error"]
    assert told["error"].endswith("; the.truststore names who is trusted")


async def test_a_trusted_authority_does_not_stand_for_another_host(tmp_path: Path) -> None:
    made = authority("first")
    trusted = private_authority(made, tmp_path, "keys.example")
    with made.serving() as url, pytest.raises(OSError, match="is for another name"):
        await fetch_document(f"{url}/keys", trust=TlsTrust(path=trusted))


async def test_a_replaced_authority_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(published_keys, "FIRST_RETRY_S", 0.01)
    made = authority("first")
    trusted = private_authority(made, tmp_path)
    right = trusted.read_text()
    trusted.write_text(Authority().certificate)
    with made.serving() as url:
        keys = PublishedKeys(f"{url}/keys", 3600, TlsTrust(path=trusted))
        await nursery.start(keys.run)
        assert len(keys.keys) == 0
        trusted.write_text(right)
        await eventually(keys, token(made, "first"))


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the\.truststore: .*missing\.pem cannot be read"):
        PublishedKeys("https://a/keys", 3600, TlsTrust(path=tmp_path / "missing.pem", setting="the.truststore"))


async def test_tokens_of_a_server_behind_a_private_authority(tmp_path: Path) -> None:
    made = authority("first")
    trusted = private_authority(made, tmp_path)
    with made.serving(sub="alice") as url:
        asked = partial(TokenSource, f"{url}/token", CLIENT, Secret(CLIENT_SECRET), None)
        assert (await asked(TlsTrust(path=trusted)).find()).reveal().count(".") == 2
        with pytest.raises(AuthenticationError, match=r"https\.ca\.location names who is trusted"):
            await asked(TlsTrust(setting="https.ca.location")).find()


def test_a_client_names_an_authority_that_cannot_be_read(tmp_path: Path) -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://a/token",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "https.ca.location": str(tmp_path / "missing.pem"),
    }
    with pytest.raises(ConfigurationError, match=r"https\.ca\.location: .*missing\.pem cannot be read"):
        ClientSecurity.from_settings(given).dialer()


async def test_a_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenSource(path.as_uri())
    for text in ("first.a.b\n", "second.a.b"):
        path.write_text(text)
        assert (await source.find()).reveal() == text.strip()
