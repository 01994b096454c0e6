"""Administration: the program of the documentation, and what it leaves out."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.cli.group_progress import GROUPS_PER_REQUEST, lags_of
from pipeline.client import (
    Admin,
    ClientConfig,
    ClientQuotaEntity,
    CommittedOffset,
    ElectionType,
    ErrorCode,
    KafkaError,
    NewTopic,
    PartlyDeletedError,
    ProducerConfig,
    TopicPartition,
    TopicsRefusedError,
    open_cluster,
    open_producer,
    parse_addresses,
)
from pipeline.model import BrokerId
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

DEADLINE_S = 60
PAGE = Path(__file__).parents[2] / "docs" / "client" / "admin.md"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


async def test_the_program_of_the_page_runs(local: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, str(PAGE), "exec"), names)
    await names["administrate"](local.bootstrap)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["86400000", "0"]
    assert "CommittedOffset(offset=0" in printed[2]
    assert printed[3].startswith("{")


async def test_topics_groups_and_quotas(local: LocalCluster) -> None:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as cluster:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name="visits", partitions=1)])
        with pytest.raises(KafkaError) as refused:
            await admin.create_topics([NewTopic(name="visits")])
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await admin.create_partitions({"visits": 2})
        assert set((await admin.describe_topics(["visits"]))["visits"].partitions) == {0, 1}
        first, second = TopicPartition("visits", 0), TopicPartition("visits", 1)
        zero = CommittedOffset(offset=0)
        await admin.alter_consumer_group_offsets("g", {first: zero, second: zero})
        assert "g" in {group.id for group in await admin.list_consumer_groups()}
        await admin.delete_consumer_group_offsets("g", [first])
        assert set(await admin.list_consumer_group_offsets("g")) == {second}
        with pytest.raises(KafkaError) as refused:
            await admin.delete_consumer_group_offsets("unknown", [first])
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        await admin.delete_consumer_group("g")
        default = ClientQuotaEntity(user="<default>", client_id="app")
        await admin.alter_client_quotas({default: {"consumer_byte_rate": 5.0}})
        with trio.fail_after(DEADLINE_S):  # brokers learn of it through ZooKeeper
            while (await admin.describe_client_quotas()).get(default) != {"consumer_byte_rate": 5.0}:
                await trio.lowlevel.checkpoint()
        with pytest.raises(KafkaError, match=r"quotas of user <default> client-id app: .*nonsense"):
            await admin.alter_client_quotas({default: {"nonsense": 5.0}})
        assert await admin.list_partition_reassignments() == {}
        elected = await admin.elect_leaders(ElectionType.PREFERRED, [first])
        assert [error and error.code for error in elected.values()] == [ErrorCode.ELECTION_NOT_NEEDED]
        await admin.delete_topics(["visits"])


def run(local: LocalCluster, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments, "-b", local.bootstrap],
        capture_output=True, text=True, timeout=240, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_topics_are_created_once_listed_by_pattern_and_deleted_together(local: LocalCluster) -> None:
    for said in ("Created topic logs.a.", "Topic logs.a exists."):
        assert run(local, "topic", "create", "logs.a", "--if-not-exists").strip() == said
    assert "TOPIC_ALREADY_EXISTS" in run(local, "topic", "create", "logs.a", code=1)
    run(local, "topic", "create", "logs.b")
    run(local, "topic", "create", "other")
    listed = json.loads(run(local, "topic", "list", r"logs\..*", "--json"))["topics"]
    assert [(topic["name"], topic["replication_factor"]) for topic in listed] == [("logs.a", 1), ("logs.b", 1)]
    assert "no regular expression" in run(local, "topic", "list", "(", code=2)
    assert "--yes would delete logs.a, logs.b" in run(local, "topic", "delete", "--matching", "logs.*", code=2)
    assert run(local, "topic", "delete", "--matching", "logs.*", "--yes").count("Deleted topic") == 2
    assert run(local, "topic", "delete", "other").strip() == "Deleted topic other."
    run(local, "group", "reset-offsets", "g", "--topic", "logs.c", "--to-earliest", "--execute", code=1)
    said = run(local, "topic", "delete", "__consumer_offsets", code=2)
    assert "--yes would delete __consumer_offsets. The cluster keeps its own data in __consumer_offsets" in said


def answered(local: LocalCluster, *arguments: str, answer: bytes) -> tuple[int, str]:
    """The exit code and the output of a command on a terminal that is given an answer to its question."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-m", "pipeline", *arguments, "-b", local.bootstrap])
    said = b""
    while True:
        try:
            read = os.read(terminal, 4096)
        except OSError:  # the end, on Linux
            break
        if not read:
            break
        if b"[y/N]" in read:
            os.write(terminal, answer)
        said += read
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


@pytest.mark.long
def test_a_deletion_is_asked_for_on_a_terminal(local: LocalCluster) -> None:
    run(local, "topic", "create", "asked")
    for answer, code in ((b"\x03", 130), (b"\x04", 1), (b"no\n", 1)):
        ended, said = answered(local, "topic", "delete", "asked", answer=answer)
        assert ended == code, said
        assert ("nothing was deleted" in said) == (code == 1)
    assert answered(local, "topic", "delete", "asked", answer=b"y\n")[0] == 0
    assert '"asked"' not in run(local, "topic", "list", "--json")


@pytest.mark.long
def test_offsets_by_time_and_of_groups(local: LocalCluster) -> None:
    run(local, "topic", "create", "timed")
    for time, offset in (("latest", 0), ("2020-01-01T00:00:00Z", None)):
        (row,) = json.loads(run(local, "topic", "offsets", "timed", "--time", time, "--json"))["partitions"]
        assert (row["partition"], row["offset"]) == (0, offset)
    assert "is not a time" in run(local, "topic", "offsets", "timed", "--time", "noon", code=2)
    run(local, "group", "reset-offsets", "slow", "--topic", "timed", "--to-earliest", "--execute")
    (group,) = [g for g in json.loads(run(local, "group", "list", "--lag", "--json"))["groups"] if g["group"] == "slow"]
    assert group["lag"] == 0
    assert (
        run(local, "group", "delete-offsets", "slow", "--topic", "timed").strip() == "Deleted 1 offset of group slow."
    )
    assert "has no offsets in timed" in run(local, "group", "delete-offsets", "slow", "--topic", "timed", code=1)


@pytest.mark.long
def test_settings_of_brokers_and_quotas(local: LocalCluster) -> None:
    assert (
        run(local, "broker", "configure", "1", "--set", "message.max.bytes=2000000").strip() == "Configured broker 1."
    )
    assert "broker 1" in run(local, "broker", "configure", "1", "--set", "nonsense=2", code=1)
    assert "--set: is missing" in run(local, "broker", "configure", code=2)
    both = ("--set", "message.max.bytes=1", "--unset", "message.max.bytes")
    assert "--unset message.max.bytes: is given, and so is --set" in run(local, "broker", "configure", *both, code=2)
    assert "broker 7 is not alive: brokers 1 are" in run(local, "broker", "configure", "7", "--set", "a=1", code=1)
    altered = run(
        local, "quota", "alter", "--user", "<default>", "--client-id", "night", "--set", "producer_byte_rate=7"
    )
    assert altered.strip() == "Changed quotas of user <default> client-id night."
    wanted = {"user": "<default>", "client_id": "night", "ip": None, "quota": "producer_byte_rate", "value": 7.0}
    wait_for("the quota", lambda: wanted in json.loads(run(local, "quota", "list", "--json"))["quotas"])
    assert "is no number" in run(local, "quota", "alter", "--user", "u", "--set", "producer_byte_rate=x", code=2)
    assert "give --user" in run(local, "quota", "alter", "--set", "producer_byte_rate=1", code=2)


@pytest.mark.long
def test_offsets_are_exported_and_imported(local: LocalCluster, tmp_path: Path) -> None:
    run(local, "topic", "create", "moved")
    run(local, "group", "reset-offsets", "from", "--topic", "moved", "--to-earliest", "--execute")
    file = tmp_path / "offsets.json"
    file.write_text(run(local, "group", "export-offsets", "from"))
    assert run(local, "group", "import-offsets", "to", str(file)).strip() == "Set 1 offset of group to."
    told = json.loads(run(local, "group", "export-offsets", "to"))
    assert told == {**json.loads(file.read_text()), "group": "to"}
    assert "has not committed any offsets" in run(local, "group", "export-offsets", "nobody", code=1)
    for text in ("nonsense", "[]", '{"offsets": [{"topic": "moved", "partition": 0, "offset": -1}]}'):
        file.write_text(text)
        assert "is not a document of export-offsets" in run(local, "group", "import-offsets", "to", str(file), code=2)


@pytest.mark.long
def test_offsets_that_do_not_fit_the_logs_are_not_imported(local: LocalCluster, tmp_path: Path) -> None:
    """A consumer would be reset, as its own policy says, and skip or repeat records without a word."""
    run(local, "topic", "create", "fits")
    file = tmp_path / "offsets.json"
    good = {"topic": "fits", "partition": 0, "offset": 0}
    for other, reason in (
        ({**good, "partition": 7}, "the cluster has no partition fits-7"),
        ({**good, "topic": "gone"}, "the cluster has no partition gone-0"),
        ({**good, "topic": "\ud800"}, "the cluster has no partition"),
    ):
        file.write_text(json.dumps({"offsets": [good, other]}))
        assert f"no offset was set: {reason}" in run(local, "group", "import-offsets", "stale", str(file), code=1)
    file.write_text(json.dumps({"offsets": [{**good, "offset": 1}]}))
    said = run(local, "group", "import-offsets", "stale", str(file), code=1)
    assert "no offset was set: fits-0 at 1 (log: 0 to 0)" in said
    file.write_text(json.dumps({"offsets": [good, {**good, "offset": 1}]}))
    assert "names a partition twice" in run(local, "group", "import-offsets", "stale", str(file), code=2)
    assert "has not committed any offsets" in run(local, "group", "export-offsets", "stale", code=1)


async def test_what_was_done_by_half_is_told(local: LocalCluster) -> None:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as cluster:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name=name, partitions=2) for name in ("half.a", "half.b")])
        with pytest.raises(TopicsRefusedError, match=r"topic none: .*; done: half\.b") as refused:
            await admin.delete_topics(["none", "half.b"])
        assert (list(refused.value.refused), refused.value.done) == (["none"], ["half.b"])
        first, second = TopicPartition("half.a", 0), TopicPartition("half.a", 1)
        async with open_producer(cluster, ProducerConfig(), clock=lambda: 1, rng=Random(1)) as producer:
            await producer.send_and_wait("half.a", b"value", partition=0)
        with pytest.raises(PartlyDeletedError, match=r"half\.a-1; records of half\.a-0 were deleted") as partly:
            await admin.delete_records({first: 1, second: 1})
        assert (partly.value.code, partly.value.deleted) == (ErrorCode.OFFSET_OUT_OF_RANGE, {first: 1})
        beyond = {first: CommittedOffset(offset=1), TopicPartition("half.a", 9): CommittedOffset(offset=1)}
        with pytest.raises(KafkaError, match=r"partition 9 of half\.a: .*; 1 of 2 were done"):
            await admin.alter_consumer_group_offsets("half", beyond)
        quotas: dict[ClientQuotaEntity, dict[str, float | None]] = {
            ClientQuotaEntity(user="a"): {"nonsense": 1.0}, ClientQuotaEntity(user="b"): {"producer_byte_rate": 9.0},
        }  # fmt: skip
        with pytest.raises(KafkaError, match=r"user a: .*; quotas of 1 of 2 entities were changed"):
            await admin.alter_client_quotas(quotas)


@pytest.mark.long
async def test_the_lags_of_many_groups_take_few_requests(local: LocalCluster) -> None:
    lagging = TopicPartition("lagging", 0)
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as cluster:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name=name, partitions=1) for name in ("lagging", "deleted")])
        async with open_producer(cluster, ProducerConfig(), clock=lambda: 1, rng=Random(1)) as producer:
            await producer.send_many("lagging", [b"value"] * 10)
        offsets = {lagging: CommittedOffset(offset=7), TopicPartition("deleted", 0): CommittedOffset(offset=0)}
        async with trio.open_nursery() as nursery:
            for number in range(GROUPS_PER_REQUEST + 5):
                nursery.start_soon(admin.alter_consumer_group_offsets, f"many-{number}", offsets)
        await admin.delete_topics(["deleted"])
        listed = await admin.list_consumer_groups()
        many = [replace(group, coordinator=BrokerId(77)) if group.id == "many-3" else group for group in listed]
        lags = await lags_of(cluster, many)
    assert {lag for group, lag in lags.items() if group.startswith("many-")} == {3}
    assert lags.keys() == {group.id for group in listed}


@pytest.mark.long
async def test_a_controller_that_hangs_delays_no_more_than_its_session() -> None:
    """The whole time went by in the wait for its answer, and its successor was not asked."""
    settings: dict[str, str | int | bool] = {"zookeeper.session.timeout.ms": 6000}
    with LocalCluster(brokers=3, settings=settings, restart_after_s=0) as cluster_of_three:
        config = ClientConfig(bootstrap=parse_addresses(cluster_of_three.bootstrap))
        async with open_cluster(config) as cluster:
            controller = (await cluster.refresh()).controller
            pid = cluster_of_three.pids[f"broker-{controller}"]
            os.kill(pid, signal.SIGSTOP)
            try:
                await Admin(cluster, timeout_s=30).create_topics([NewTopic(name="during", replication_factor=1)])
            finally:
                os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_a_partition_without_a_leader_hides_no_offsets_of_others() -> None:
    with LocalCluster(brokers=2, settings={"zookeeper.session.timeout.ms": 6000}, restart_after_s=0) as of_two:
        run(of_two, "topic", "create", "half", "--partitions", "2", "--replication-factor", "1")
        described = json.loads(run(of_two, "topic", "describe", "half", "--json"))
        (lost,) = [row["partition"] for row in described["partitions"] if row["leader"] == 2]
        os.kill(of_two.pids["broker-2"], signal.SIGKILL)
        wait_for("the loss", lambda: json.loads(run(of_two, "topic", "list", "--json"))["topics"][0]["without_leader"])
        said = run(of_two, "topic", "offsets", "half", "--json", code=1)
        offsets, reason = said.splitlines()
        assert {row["partition"]: row["offset"] for row in json.loads(offsets)["partitions"]} == {
            lost: None,
            1 - lost: 0,
        }
        assert f"no leader: half-{lost};" in reason
