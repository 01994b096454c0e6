"""A load into an HDFS with Kerberos, by a keytab: a real KDC, NameNode and DataNode. Who has no key gets nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from tests.support.brokers import clock, serving_cluster
from tests.support.hdfs import HdfsCluster, running_hdfs
from tests.support.kdc import REALM, Kdc, running_kdc

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


async def load(cluster: HdfsCluster, kdc: Kdc, bootstrap: str, *assignments: str) -> subprocess.CompletedProcess[str]:
    """Run `pipeline load run` in an environment that has nobody's tickets."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KRB5")}
    environment = {**inherited, **client_environment(kdc, cluster.directory), "KRB5CCNAME": "MEMORY:nobody"}
    command = ["load", "run", "--topic", "clicks", "--root", f"{cluster.url}/lake", "-b", bootstrap, "--json"]
    given = ("value.format=binary", "store.timeout.ms=30000", *assignments)
    call = partial(
        subprocess.run,
        [sys.executable, "-m", "pipeline", *command, *(f"--set={each}" for each in given)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return await trio.to_thread.run_sync(call)


@pytest.mark.long
async def test_a_load_logs_in_by_its_keytab_and_others_are_refused(
    secured_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path
) -> None:
    keytab, other = kdc.keytab("loader"), kdc.keytab("mallory")
    async with serving_cluster(tmp_path / "broker") as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)])
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for number in range(RECORDS):
                await producer.send("clicks", b"%d" % number, partition=number % 2)
        bootstrap = ",".join(str(broker.address) for broker in cluster.view.brokers.values())
        run = partial(load, secured_hdfs, kdc, bootstrap)
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
