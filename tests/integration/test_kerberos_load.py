"""A load into an HDFS with Kerberos, by a keytab: a real KDC, NameNode and DataNode. Who has no key gets nothing."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

import httpx
import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from tests.support.brokers import clock, serving_cluster
from tests.support.hdfs import HdfsCluster, running_hdfs
from tests.support.kdc import CLOCK_SKEW_S, REALM, Kdc, running_kdc

RECORDS = 300
DEADLINE_S = 400


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as running:
        yield running


@pytest.fixture(scope="module")
def secured_hdfs(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """An HDFS with a directory /lake of the user loader. This process is its superuser."""
    directory = tmp_path_factory.mktemp("hdfs")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in client_environment(kdc, directory).items():
            patch.setenv(name, value)
        superuser = {
            "KRB5_CLIENT_KTNAME": f"FILE:{kdc.directory}/hdfs-localhost.keytab",
            "KRB5CCNAME": "MEMORY:superuser",
        }
        for name, value in superuser.items():
            patch.setenv(name, value)
        with running_hdfs(directory, kdc) as cluster:
            client = cluster.client()
            client.mkdirs("/lake", permission=0o700)
            client.set_owner("/lake", owner="loader")
            yield cluster


def client_environment(kdc: Kdc, directory: Path) -> Mapping[str, str]:
    """Where realm and cluster are described. Spark's Java does not look at KRB5_CONFIG."""
    return {
        "KRB5_CONFIG": str(kdc.settings),
        "JDK_JAVA_OPTIONS": f"-Djava.security.krb5.conf={kdc.settings}",
        "HADOOP_CONF_DIR": str(directory / "conf"),
    }


async def pipeline(
    cluster: HdfsCluster, kdc: Kdc, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that has nobody's tickets, unless `environment` names a keytab."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KRB5")}
    nobody = {**inherited, **client_environment(kdc, cluster.directory), "KRB5CCNAME": "MEMORY:nobody"}
    call = partial(
        subprocess.run,
        [sys.executable, "-m", "pipeline", "load", *arguments],
        env={**nobody, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return await trio.to_thread.run_sync(call)


async def load(
    cluster: HdfsCluster, kdc: Kdc, bootstrap: str, *assignments: str, topic: str = "clicks"
) -> subprocess.CompletedProcess[str]:
    """Run `pipeline load run`."""
    command = ("run", "--topic", topic, "--root", f"{cluster.url}/lake", "-b", bootstrap, "--json")
    given = ("value.format=binary", "store.timeout.ms=30000", *assignments)
    return await pipeline(cluster, kdc, *command, *(f"--set={each}" for each in given))


async def publish(cluster: Cluster, topic: str, *values: bytes) -> None:
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % 2)


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


@pytest.mark.long
async def test_a_load_logs_in_by_its_keytab_and_others_are_refused(
    secured_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path
) -> None:
    keytab, other = kdc.keytab("loader"), kdc.keytab("mallory")
    async with serving_cluster(tmp_path / "broker") as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)])
        await publish(cluster, "clicks", *(b"%d" % number for number in range(RECORDS)))
        run = partial(load, secured_hdfs, kdc, bootstrap_of(cluster))
        stranger = await run()
        assert stranger.returncode != 0
        assert "No Kerberos credentials available" in stranger.stderr
        assert "Traceback" not in stranger.stderr
        mallory = await run(f"spark.kerberos.keytab={other}")
        assert mallory.returncode != 0
        assert "Permission denied: user=mallory" in mallory.stderr
        loaded = await run(f"spark.kerberos.keytab={keytab}", f"spark.kerberos.principal=loader@{REALM}")
        assert loaded.returncode == 0, loaded.stderr[-3000:]
        assert json.loads(loaded.stdout)["records"] == RECORDS
        again = await run(f"spark.kerberos.keytab={keytab}")
        assert json.loads(again.stdout)["committed"] is False
    files = [status for status in secured_hdfs.client().list_status("/lake", True) if not status.isdir]
    assert {status.owner for status in files} == {"loader"}


@pytest.mark.long
async def test_queries_and_compaction_log_in_by_a_keytab(secured_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path) -> None:
    keytab = kdc.keytab("loader")
    by_keytab = f"--set=spark.kerberos.keytab={keytab}"
    table = ("--topic", "visits", "--root", f"{secured_hdfs.url}/lake")
    count = ("sql", "SELECT count(*) AS records FROM visits", *table, "--json")
    run = partial(pipeline, secured_hdfs, kdc)
    async with serving_cluster(tmp_path / "broker") as cluster:
        await create_topics(cluster, [NewTopic(name="visits", partitions=2)])
        for number in range(3):
            await publish(cluster, "visits", b"%d" % number, b"%d" % number)
            loaded = await load(
                secured_hdfs, kdc, bootstrap_of(cluster), by_keytab.removeprefix("--set="), topic="visits"
            )
            assert loaded.returncode == 0, loaded.stderr[-3000:]
    stranger = await run(*count)
    assert stranger.returncode != 0
    assert "No Kerberos credentials available" in stranger.stderr
    asked = await run(*count, by_keytab)
    assert asked.returncode == 0, asked.stderr[-3000:]
    assert json.loads(asked.stdout)["rows"] == [[6]]
    files = len(json.loads((await run("files", *table, "--json", **environment_of(keytab))).stdout)["files"])
    compacted = await run("compact", *table, "--json", **environment_of(keytab))
    assert compacted.returncode == 0, compacted.stderr[-3000:]
    left = len(json.loads((await run("files", *table, "--json", **environment_of(keytab))).stdout)["files"])
    assert left < files
    again = await run(*count, by_keytab)
    assert json.loads(again.stdout)["rows"] == [[6]]


def environment_of(keytab: Path) -> dict[str, str]:
    """What the docs name for commands that have no setting of a keytab."""
    return {"KRB5_CLIENT_KTNAME": f"FILE:{keytab}", "KRB5CCNAME": "MEMORY:pipeline"}


TICKET_LIFE_S = 20
LIVES = 3
INTERVAL = "2s"


@pytest.mark.long
async def test_a_load_outlives_its_tickets(secured_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path) -> None:
    """Rounds of one resident process for three lives of a ticket, with new records in each: all are committed."""
    keytab = kdc.keytab("brief", ticket_life_s=TICKET_LIFE_S)
    superuser = secured_hdfs.client()
    superuser.mkdirs("/brief", permission=0o700)
    superuser.set_owner("/brief", owner="brief")
    log = tmp_path / "resident.log"
    async with serving_cluster(tmp_path / "broker") as cluster:
        await create_topics(cluster, [NewTopic(name="orders", partitions=2)])
        command = [sys.executable, "-m", "pipeline", "load", "run", "--topic", "orders", "--interval", INTERVAL]
        at = ["--root", f"{secured_hdfs.url}/brief", "-b", bootstrap_of(cluster), "--http-listen", "127.0.0.1:0"]
        given = ["--set=value.format=binary", f"--set=spark.kerberos.keytab={keytab}"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KRB5")}
        environment = {**inherited, **client_environment(kdc, secured_hdfs.directory), "KRB5CCNAME": "MEMORY:nobody"}
        process = started([*command, *at, *given], environment, log)
        try:
            begun, published = time.monotonic(), 0
            while time.monotonic() < begun + LIVES * TICKET_LIFE_S or kdc.logins("brief") < LIVES:
                await publish(cluster, "orders", b"1", b"2")
                published += 2
                with trio.fail_after(DEADLINE_S):
                    while await trio.to_thread.run_sync(committed, log, process) < published:
                        await trio.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    assert published >= 2 * LIVES
    assert "load_failed" not in log.read_text()
    files = [status for status in superuser.list_status("/brief", True) if not status.isdir]
    assert {status.owner for status in files} == {"brief"}


ASK_TWICE = """
import sys
from hdfs_native import Client
for _ in range(2):
    list(Client(sys.argv[1]).list_status(sys.argv[2]))
    print("asked", flush=True)
    sys.stdin.readline()
"""


async def asked_twice(
    cluster: HdfsCluster, kdc: Kdc, path: str, pause_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Have one process list a directory by two connections, the second one after a pause."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KRB5")}

    def run() -> subprocess.CompletedProcess[str]:
        with subprocess.Popen(
            [sys.executable, "-c", ASK_TWICE, cluster.url, path],
            env={**inherited, **client_environment(kdc, cluster.directory), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            first = process.stdout.readline()
            ends = time.monotonic() + pause_s if first else 0.0
            while time.monotonic() < ends:
                time.sleep(0.1)
            output, errors = process.communicate("\n\n", timeout=DEADLINE_S)
            return subprocess.CompletedProcess(process.args, process.returncode, first + output, errors)

    return await trio.to_thread.run_sync(run)


@pytest.mark.long
async def test_a_process_with_a_keytab_renews_tickets_that_have_ended_and_one_with_tickets_alone_does_not(
    secured_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path
) -> None:
    life_s = 6
    keytab = kdc.keytab("moment", ticket_life_s=life_s)
    superuser = secured_hdfs.client()
    superuser.mkdirs("/moment", permission=0o700)
    superuser.set_owner("/moment", owner="moment")
    ended_s = life_s + CLOCK_SKEW_S + 1.0
    ask = partial(asked_twice, secured_hdfs, kdc, "/moment")
    renewed = await ask(ended_s, **environment_of(keytab))
    assert (renewed.returncode, renewed.stdout) == (0, "asked\nasked\n"), renewed.stderr[-3000:]
    tickets = {"KRB5CCNAME": f"FILE:{tmp_path / 'tickets'}"}
    made = await ask(0.0, **tickets, KRB5_CLIENT_KTNAME=f"FILE:{keytab}")
    assert made.returncode == 0, made.stderr[-3000:]
    ended = await ask(ended_s, **tickets)
    assert ended.stdout == "asked\n", ended.stderr[-3000:]
    assert ended.returncode != 0
    assert "expired" in ended.stderr, ended.stderr[-3000:]


def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def committed(log: Path, process: "subprocess.Popen[bytes]") -> int:
    """Records that the resident process has committed, by its metrics."""
    assert process.poll() is None, log.read_text()[-3000:]
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    address = next((event["address"] for event in events if event["event"] == "http_served"), None)
    if address is None:
        return 0
    text = httpx.get(f"http://{address}/metrics", timeout=60).text
    found = re.search(r'^pipeline_load_records_total\{topic="orders"\} (\S+)$', text, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))
