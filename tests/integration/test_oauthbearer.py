"""OAUTHBEARER with a real HTTP server of keys and tokens: confluent-kafka and our client, refusals, and renewals."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import KafkaException

from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import PipelineError
from pipeline.net.connection_pool import open_connection_pool
from pipeline.net.security.client_security import ClientSecurity
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_acls import AclOperation, AclPermission, AclResourceType
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.settings import parse_addresses
from tests.integration.test_secured_listeners import client, refused, round_trip, running, settings_of
from tests.support.secured_broker import Ask, allow, create
from tests.support.token_authority import CLIENT, CLIENT_SECRET, TokenAuthority

LISTENER = "SASL_SSL"
DEADLINE_S = 60
IN_FORCE_S = 2.0
"""A change of rules is in force within a second; the machine may be busy."""


@asynccontextmanager
async def listening(
    directory: Path, authority: TokenAuthority, *, lifetime_s: float = 600, **more: str
) -> AsyncIterator[dict[str, str]]:
    """A broker that takes tokens of the authority; bootstrap addresses by listener."""
    with authority.serving(lifetime_s=lifetime_s, sub="loader", aud="kafka") as url:
        settings = {
            "sasl_enabled_mechanisms": "OAUTHBEARER,PLAIN",
            "sasl_oauthbearer_jwks_endpoint_url": f"{url}/keys",
            "sasl_oauthbearer_expected_audience": "kafka",
            "super_users": "User:loader",
            "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        }
        async with running(directory, **settings, **more) as addresses:
            yield addresses


def made_authority() -> TokenAuthority:
    authority = TokenAuthority()
    authority.add("first", "RS256")
    return authority


def with_tokens(authority: TokenAuthority, lifetime_s: float, handed: list[str], **claims: Any) -> dict[str, Any]:
    """Settings of a confluent-kafka client whose callback signs tokens."""

    def sign(_: str) -> tuple[str, float]:
        ends = time.time() + lifetime_s
        token = authority.token("first", **{"sub": "loader", "aud": "kafka", "exp": ends, **claims})
        handed.append(token)
        return token, ends if lifetime_s > 0 else time.time() + 60

    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": sign}


async def test_confluent_kafka_comes_in_with_a_token(tmp_path: Path) -> None:
    authority, handed = made_authority(), list[str]()
    async with listening(tmp_path, authority) as addresses:
        settings = {**client(tmp_path, addresses, LISTENER), **with_tokens(authority, 600, handed)}
        assert await trio.to_thread.run_sync(round_trip, settings, "clicks") == [b"0", b"1", b"2"]
        assert handed
        other = {**settings, **with_tokens(authority, 600, handed, sub="stranger")}
        with pytest.raises(KafkaException):
            await trio.to_thread.run_sync(round_trip, other, "clicks")


async def test_an_authority_of_tokens_behind_a_private_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = made_authority()
    settings_of(tmp_path)  # which writes certificates
    authority.keystore = tmp_path / "broker.pem"
    trusted = f'x.Module required ssl.truststore.location="{tmp_path / "ca.pem"}" ssl.truststore.type="PEM";'
    from_server = {
        "sasl_oauthbearer_client_id": CLIENT,
        "sasl_oauthbearer_client_secret": CLIENT_SECRET,
        "https_ca_location": str(tmp_path / "ca.pem"),
    }
    async with listening(tmp_path, authority, oauthbearer_sasl_jaas_config=trusted) as addresses:
        url = f"{authority.url}/token"
        config = our_config(tmp_path, addresses, sasl_oauthbearer_token_endpoint_url=url, **from_server)
        async with open_cluster(config) as cluster:
            assert await list_topics(cluster) == {}
    assert "published_keys_unreadable" not in caplog.text
    async with listening(tmp_path, authority, log_dirs=str(tmp_path / "others")) as addresses:
        settings = {**client(tmp_path, addresses, LISTENER), **with_tokens(authority, 60, [])}
        assert '{"status":"invalid_token"}' in await refused(settings)
    assert "nobody who is trusted has signed the certificate" in caplog.text
    assert "oauthbearer.sasl.jaas.config names who is trusted" in caplog.text


async def test_tokens_that_do_not_count_are_refused_with_kafkas_words(tmp_path: Path) -> None:
    authority = made_authority()
    async with listening(tmp_path, authority) as addresses, trio.open_nursery() as nursery:

        async def expect_refusal(**claims: Any) -> None:
            settings = {**client(tmp_path, addresses, LISTENER), **with_tokens(authority, 60, [], **claims)}
            assert '{"status":"invalid_token"}' in await refused(settings)

        for claims in ({"aud": "other"}, {"exp": 1_700_000_000}, {"sub": ""}):
            nursery.start_soon(partial(expect_refusal, **claims))


def our_config(directory: Path, addresses: dict[str, str], **more: str) -> ClientConfig:
    security = {
        "security.protocol": LISTENER,
        "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": str(directory / "ca.pem"),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return ClientConfig(
        bootstrap=parse_addresses(addresses[LISTENER]),
        security=ClientSecurity.from_settings(security),
        default_api_timeout_ms=5000,
    )


async def test_a_denial_stops_the_open_connection_of_a_token(tmp_path: Path) -> None:
    authority = made_authority()
    async with listening(tmp_path, authority) as addresses:
        (address,) = parse_addresses(addresses[LISTENER])

        @asynccontextmanager
        async def logged_in(user: str) -> AsyncIterator[Ask]:
            token = authority.token("first", sub=user, aud="kafka", exp=time.time() + 600)
            config = our_config(tmp_path, addresses, sasl_oauthbearer_token=token)
            async with open_connection_pool(user, dialer=config.security.dialer()) as pool:
                yield lambda message: pool.request(address, message, timeout_s=DEADLINE_S)

        asked = MetadataRequest(topics=[MetadataRequestTopic(name="clicks")], allow_auto_topic_creation=False)
        async with logged_in("loader") as loader, logged_in("alice") as alice:
            await create(loader, "clicks")
            await allow(loader, AclResourceType.TOPIC, "*", AclOperation.ALL)
            assert (await alice(asked)).topics[0].error_code == ErrorCode.NONE
            await allow(loader, AclResourceType.TOPIC, "*", AclOperation.ALL, permission=AclPermission.DENY)
            denied_at = trio.current_time()
            with trio.fail_after(DEADLINE_S):
                while (await alice(asked)).topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    await trio.sleep(0.01)
            assert trio.current_time() - denied_at < IN_FORCE_S


async def test_our_client_takes_tokens_from_a_server_or_a_file(tmp_path: Path) -> None:
    authority = made_authority()
    async with listening(tmp_path, authority) as addresses:
        from_server = our_config(
            tmp_path,
            addresses,
            sasl_oauthbearer_method="oidc",
            sasl_oauthbearer_token_endpoint_url=f"{authority.url}/token",
            sasl_oauthbearer_client_id=CLIENT,
            sasl_oauthbearer_client_secret=CLIENT_SECRET,
        )
        path = tmp_path / "token"
        path.write_text(authority.token("first", sub="loader", aud="kafka", exp=time.time() + 60))
        from_file = our_config(tmp_path, addresses, sasl_oauthbearer_token_endpoint_url=path.as_uri())
        for config in (from_server, from_file):
            async with open_cluster(config) as cluster:
                assert await list_topics(cluster) == {}
        path.write_text(authority.token("first", sub="loader", aud="other", exp=time.time() + 60))
        async with open_cluster(from_file) as cluster:
            with pytest.raises(PipelineError) as refusal:
                await cluster.refresh(timeout_s=6)
        assert "invalid_token" in f"{refusal.value} {refusal.value.__cause__}"


async def test_a_session_goes_on_with_ever_new_tokens(tmp_path: Path) -> None:
    authority = made_authority()
    settings = {"sasl_oauthbearer_clock_skew_seconds": "0"}
    async with listening(tmp_path, authority, lifetime_s=1.2, **settings) as addresses:
        config = our_config(
            tmp_path,
            addresses,
            sasl_oauthbearer_token_endpoint_url=f"{authority.url}/token",
            sasl_oauthbearer_client_id=CLIENT,
            sasl_oauthbearer_client_secret=CLIENT_SECRET,
        )
        async with open_cluster(config) as cluster:
            with trio.fail_after(60):
                while len(authority.forms) < 4:
                    assert await list_topics(cluster) == {}
                    await trio.sleep(0.05)
