"""Two brokers that log in to each other with tokens (OAUTHBEARER), which a server of OpenID Connect gives them."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics, list_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import ConfigurationError
from tests.integration.test_secured_cluster import client_config, cluster, config_of
from tests.support.token_authority import CLIENT, CLIENT_SECRET, TokenAuthority

pytestmark = pytest.mark.long

LOGIN = f'OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="{CLIENT_SECRET}" scope="kafka";'
JAAS_KEY = "listener.name.internal.oauthbearer.sasl.jaas.config"
URL_KEY = "listener.name.internal.sasl.oauthbearer.token.endpoint.url"
LIFETIME_S = 3.0
"""Of a token: connections of brokers are renewed many times in a test."""


def by_tokens(number: int, directory: Path, url: str, **more: str) -> BrokerConfig:
    settings = {
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.internal.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.internal.sasl.oauthbearer.jwks.endpoint.url": f"{url}/keys",
        "listener.name.internal.sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.internal.sasl.oauthbearer.clock.skew.seconds": "0",
        URL_KEY: f"{url}/token",
        JAAS_KEY: LOGIN,
        "super.users": f"User:{CLIENT};User:alice",
        **more,
    }
    return config_of(number, directory, **{key: value for key, value in settings.items() if value})


@asynccontextmanager
async def serving(directory: Path, authority: TokenAuthority, **more: str) -> AsyncIterator[Cluster]:
    authority.add("first", "RS256")
    with authority.serving(lifetime_s=LIFETIME_S, sub=CLIENT, aud="kafka") as url:
        configs = [by_tokens(number, directory, url, **more) for number in (1, 2)]
        async with cluster(*configs) as addresses, open_cluster(client_config(directory, addresses)) as opened:
            yield opened


async def test_records_are_replicated_by_brokers_that_log_in_with_ever_new_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = TokenAuthority()
    async with serving(tmp_path, authority) as opened:
        topic = NewTopic(name="clicks", partitions=2, replication_factor=2, configs={"min.insync.replicas": "2"})
        with trio.fail_after(120):
            await create_topics(opened, [topic])
            begun = trio.current_time()
            async with open_producer(opened, ProducerConfig(), clock=wall_clock, rng=random.Random(1)) as producer:
                while trio.current_time() < begun + 2 * LIFETIME_S or len(authority.forms) < 6:
                    delivery = await producer.send("clicks", b"1", partition=0)
                    await producer.flush()
                    assert delivery.is_done
                    await trio.sleep(0.05)
            while any(len(each.isr) < 2 for each in (await list_topics(opened))["clicks"].partitions.values()):
                await trio.sleep(0.05)
    assert all(form == {"grant_type": ["client_credentials"], "scope": ["kafka"]} for form in authority.forms)
    assert "authentication_failed" not in caplog.text
    assert "has ended" not in caplog.text
    assert CLIENT_SECRET not in caplog.text


async def test_a_broker_with_a_wrong_secret_says_so_and_follows_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    wrong = LOGIN.replace(CLIENT_SECRET, "wr0ng")
    async with serving(tmp_path, TokenAuthority(), **{JAAS_KEY: wrong}) as opened, trio.open_nursery() as nursery:
        nursery.start_soon(create_topics, opened, [NewTopic(name="clicks", partitions=2, replication_factor=2)])
        with trio.fail_after(60):
            while "no token from http://127.0.0.1" not in caplog.text:
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert "wr0ng" not in caplog.text


@pytest.mark.parametrize(
    ("more", "key", "said"),
    [
        ({URL_KEY: ""}, "sasl.oauthbearer.token.endpoint.url", "is missing: from there this broker has the tokens"),
        ({JAAS_KEY: ""}, JAAS_KEY, "lacks clientId and clientSecret"),
        ({JAAS_KEY: f'x required clientId="{CLIENT}";'}, JAAS_KEY, "lacks clientId and clientSecret"),
    ],
)
async def test_a_broker_that_could_not_ask_for_tokens_does_not_start(
    tmp_path: Path, more: dict[str, str], key: str, said: str
) -> None:
    def is_told(error: ConfigurationError) -> bool:
        return error.key == key and said in error.reason

    with pytest.RaisesGroup(pytest.RaisesExc(ConfigurationError, check=is_told), flatten_subgroups=True):
        async with serving(tmp_path, TokenAuthority(), **more):
            pass
