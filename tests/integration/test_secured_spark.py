"""Spark reads, writes and loads over SASL_SSL, with the password nowhere that Spark shows or keeps anything."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.secured.certificates import Authority
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.net.security.client_security import ClientSecurity
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

PASSWORD = "hidden-9f27"
RECORDS = 500
DEADLINE_S = 400
PROGRAM = Path(__file__).parent / "programs/secured_spark.py"
AUTHORITY = Authority()


@asynccontextmanager
async def secured_broker(directory: Path) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster as alice sees it, and its address. Its topics are clicks, with RECORDS records, and copy."""
    issued = AUTHORITY.issue("broker", ["127.0.0.1"])
    (directory / "broker.pem").write_text(issued.key + issued.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    jaas = f'x.PlainLoginModule required username="broker" password="b2b" user_broker="b2b" user_alice="{PASSWORD}";'
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "log.dirs": str(directory / "logs"),
            "zookeeper.connect": "memory:0",
            "listeners": "SASL_SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": jaas,
            "ssl.keystore.location": str(directory / "broker.pem"),
            "ssl.truststore.location": str(directory / "ca.pem"),
            "offsets.topic.replication.factor": "1",
            "connection.failed.authentication.delay.ms": "10",
        }
    )
    async with MemoryZooKeeper().open() as zookeeper, trio.open_nursery() as nursery:
        run = partial(
            run_broker,
            config,
            zookeeper,
            clock=wall_clock,
            rng=SystemRandom(),
            observer=NoObserver(),
            metrics=CollectorRegistry(),
        )
        handle: BrokerHandle = await nursery.start(run)
        security = ClientSecurity.from_settings(
            {
                "security.protocol": "SASL_SSL",
                "sasl.username": "alice",
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(directory / "ca.pem"),
            }
        )
        client = ClientConfig(bootstrap=(handle.address,), security=security)
        async with open_cluster(client) as cluster:
            await create_topics(cluster, [NewTopic(name=name, partitions=2) for name in ("clicks", "copy")])
            async with open_producer(cluster, ProducerConfig(), clock=wall_clock, rng=Random(1)) as producer:
                for number in range(RECORDS):
                    await producer.send("clicks", b"%d" % number, partition=number % 2)
            yield cluster, str(handle.address)
        nursery.cancel_scope.cancel()


async def run(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ALICES_PASSWORD": PASSWORD, "PYSPARK_PYTHON": sys.executable}
    call = partial(
        subprocess.run,
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment,
        cwd=directory,
    )
    return await trio.to_thread.run_sync(call)


def kept(directory: Path) -> bytes:
    """Everything in the files below a directory."""
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


@pytest.mark.long
async def test_secrets_reach_tasks_and_no_plan_page_event_log_or_error(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as (_, address):
        ended = await run([str(PROGRAM), address, str(tmp_path / "ca.pem"), str(tmp_path)], tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {"batch": RECORDS, "copied": 2 * RECORDS}
    shown = kept(tmp_path / "shown")
    for text in (b"SparkListenerSQLExecutionStart", b"== Physical Plan ==", b"planDescription"):
        assert text in shown
    assert b"kafka.sasl.password: holds a secret, which Spark shows" in shown
    for text in (shown, ended.stdout.encode(), ended.stderr.encode()):
        assert PASSWORD.encode() not in text
        assert b"b2b" not in text


@pytest.mark.long
async def test_a_load_shows_its_password_nowhere(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    async with secured_broker(tmp_path) as (_, address):
        (tmp_path / "load.toml").write_text(
            f'"bootstrap.servers" = "{address}"\n"value.format" = "binary"\n"topic" = "clicks"\n'
            f'"root" = "{(tmp_path / "lake").as_uri()}"\n'
            '"security.protocol" = "SASL_SSL"\n"sasl.username" = "alice"\n"sasl.password" = "${env:ALICES_PASSWORD}"\n'
            f'"ssl.ca.location" = "{tmp_path / "ca.pem"}"\n'
        )
        ended = await run(
            [
                *("-m", "pipeline", "load", "run", "--config", str(tmp_path / "load.toml"), "--json"),
                *("--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false"),
                *("--conf", f"spark.eventLog.dir={(tmp_path / 'shown').as_uri()}"),
            ],
            tmp_path,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    shown = kept(tmp_path / "shown")
    assert b"SparkListenerTaskEnd" in shown
    for text in (shown, kept(tmp_path / "lake"), ended.stdout.encode(), ended.stderr.encode()):
        assert PASSWORD.encode() not in text
    assert str(RECORDS) in ended.stdout
