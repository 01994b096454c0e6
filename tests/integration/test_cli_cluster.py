"""`pipeline cluster` on three brokers: what it says of them, partitions moved, leaders elected, a broker lost."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from pipeline.cli.main import app
from pipeline.errors import ConfigurationError
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for, wait_until_true

pytestmark = pytest.mark.long

THROTTLE_BYTES = 50_000_000
RECORD = bytes(1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers, of which one that dies stays dead, and no leader is elected unasked."""
    with LocalCluster(brokers=3, restart_after_s=0, settings={"auto.leader.rebalance.enable": False}) as running:
        wait_for("three brokers", lambda: len(describe(running)["brokers"]) == 3)
        yield running


def run(cluster: LocalCluster, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*arguments, "-b", cluster.bootstrap])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def told(cluster: LocalCluster, *arguments: str, code: int = 0) -> Any:
    return json.loads(run(cluster, *arguments, "--json", code=code).stdout)


def describe(cluster: LocalCluster, code: int = 0) -> Any:
    return told(cluster, "cluster", "describe", code=code)


def replicas_of(cluster: LocalCluster, topic: str) -> list[list[int]]:
    return [partition["replicas"] for partition in told(cluster, "topic", "describe", topic)["partitions"]]


def plan_for(path: Path, topic: str, *replicas: list[int]) -> str:
    partitions = [{"topic": topic, "partition": index, "replicas": wanted} for index, wanted in enumerate(replicas)]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def write(cluster: LocalCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, RECORD, partition=number % 3)
    assert producer.flush(180) == 0


def test_a_healthy_cluster(cluster: LocalCluster) -> None:
    run(cluster, "topic", "create", "healthy", "--partitions", "3", "--replication-factor", "3")

    def check() -> None:
        """Each broker hears of a change in its own time, and a command asks any of them."""
        found = describe(cluster)
        assert found["controller"] in {1, 2, 3}
        assert [(broker["id"], broker["replicas"], broker["leaders"]) for broker in found["brokers"]] == [
            (1, 3, 1),
            (2, 3, 1),
            (3, 3, 1),
        ]
        assert found["under_replicated"] == []
        assert (found["offline"], found["below_min_isr"], found["moving"]) == ([], [], 0)
        assert "Under-replicated: none" in run(cluster, "cluster", "describe").stdout

    wait_until_true(check)


def test_partitions_move_by_a_plan(cluster: LocalCluster, tmp_path: Path) -> None:
    run(cluster, "topic", "create", "moved", "--partitions", "3", "--replication-factor", "2")
    write(cluster, "moved", 3000)
    planned = run(cluster, "cluster", "reassign", "plan", "--brokers", "1,2", "--topics", "moved")
    assert "replicas of" in planned.stderr
    plan = tmp_path / "plan.json"
    plan.write_text(planned.stdout)
    throttled = ["--throttle", str(THROTTLE_BYTES), "--wait"]
    applied = told(cluster, "cluster", "reassign", "apply", str(plan), *throttled)
    assert (applied["done"], applied["refused"]) == (True, [])

    def check() -> None:
        assert [sorted(replicas) for replicas in replicas_of(cluster, "moved")] == [[1, 2]] * 3
        assert told(cluster, "cluster", "reassign", "status") == {"moving": [], "bytes_left": 0}
        settings = told(cluster, "topic", "describe", "moved")["configs"]
        assert settings["leader.replication.throttled.replicas"]["source"] == "default"
        brokers = told(cluster, "broker", "describe")["brokers"]
        assert all("leader.replication.throttled.rate" not in broker["settings"] for broker in brokers)

    wait_until_true(check)
    assert "Nothing to move" in run(cluster, "cluster", "reassign", "apply", str(plan)).stdout
    assert json.loads(run(cluster, "cluster", "reassign", "plan", "--brokers", "1,2", "--topics", "moved").stdout) == {
        "version": 1,
        "partitions": [],
    }


def test_a_throttled_move_is_shown_and_cancelled(cluster: LocalCluster, tmp_path: Path) -> None:
    run(cluster, "topic", "create", "slow", "--partitions", "3", "--config", "segment.bytes=1048576")
    before = replicas_of(cluster, "slow")
    write(cluster, "slow", 30_000)
    others = [[broker for broker in (1, 2, 3) if broker not in replicas][:1] for replicas in before]
    plan = plan_for(tmp_path / "plan.json", "slow", *others)
    assert told(cluster, "cluster", "reassign", "apply", plan, "--throttle", "1")["done"] is False
    moving = told(cluster, "cluster", "reassign", "status")
    assert [row["adding"] for row in moving["moving"]] == others
    assert moving["bytes_left"] > 0
    assert "BYTES-LEFT" in run(cluster, "cluster", "reassign", "status").stdout
    run(cluster, "cluster", "reassign", "status", "--lift-throttle", code=1)
    wait_for("three moves", lambda: describe(cluster)["moving"] == 3)
    assert len(told(cluster, "cluster", "reassign", "cancel", "--topic", "slow")["cancelled"]) == 3
    wait_for("the former replicas", lambda: replicas_of(cluster, "slow") == before)
    assert told(cluster, "cluster", "reassign", "status")["moving"] == []


def test_applying_a_plan_again_waits_for_the_moves_that_are_under_way(cluster: LocalCluster, tmp_path: Path) -> None:
    run(cluster, "topic", "create", "again", "--partitions", "3", "--config", "segment.bytes=1048576")
    before = replicas_of(cluster, "again")
    write(cluster, "again", 30_000)
    others = [[broker for broker in (1, 2, 3) if broker not in replicas][:1] for replicas in before]
    plan = plan_for(tmp_path / "plan.json", "again", *others)
    begun = told(cluster, "cluster", "reassign", "apply", plan, "--throttle", "1")
    assert (len(begun["partitions"]), begun["under_way"]) == (3, [])
    wait_for("three moves", lambda: describe(cluster)["moving"] == 3)
    again = told(cluster, "cluster", "reassign", "apply", plan)
    assert (again["partitions"], len(again["under_way"]), again["done"]) == ([], 3, False)
    assert run(cluster, "cluster", "reassign", "apply", plan).stdout == "3 partitions are being moved there already.\n"
    waited = run(cluster, "cluster", "reassign", "apply", plan, "--throttle", str(THROTTLE_BYTES), "--wait").stdout
    assert waited == "Moved 3 partitions.\n"
    assert told(cluster, "cluster", "reassign", "status")["moving"] == []
    wait_for("the new replicas", lambda: replicas_of(cluster, "again") == others)


@pytest.mark.parametrize(
    ("topic", "replicas", "words"),
    [
        ("healthy", [9], "not alive: 9"),
        ("none", [1], "none-0 does not exist"),
        ("healthy", [1, 1], "names a broker twice"),
    ],
)
def test_plans_that_are_refused(
    cluster: LocalCluster, tmp_path: Path, topic: str, replicas: list[int], words: str
) -> None:
    done = CliRunner().invoke(
        app,
        [
            "cluster",
            "reassign",
            "apply",
            plan_for(tmp_path / "plan.json", topic, replicas),
            "-b",
            cluster.bootstrap,
        ],
    )
    assert done.exit_code == 1
    assert words in f"{done.stderr} {done.exception}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["reassign", "cancel"],
        ["reassign", "plan", "--brokers", "1,x"],
        ["reassign", "plan", "--brokers", "1,9"],
        ["elect"],
        ["elect", "--all", "--partition", "1"],
    ],
)
def test_commands_that_make_no_sense(cluster: LocalCluster, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["cluster", *arguments, "-b", cluster.bootstrap])
    assert isinstance(done.exception, ConfigurationError)


def test_the_preferred_replica_leads_again(cluster: LocalCluster, tmp_path: Path) -> None:
    first = replicas_of(cluster, "healthy")
    plan = plan_for(tmp_path / "plan.json", "healthy", *([*replicas[1:], replicas[0]] for replicas in first))
    run(cluster, "cluster", "reassign", "apply", plan, "--wait")
    elected = told(cluster, "cluster", "elect", "--topic", "healthy")["partitions"]
    assert [row["result"] for row in elected] == ["elected"] * 3
    again = told(cluster, "cluster", "elect", "--preferred", "--topic", "healthy", "--partition", "1")["partitions"]
    assert again == [{"topic": "healthy", "partition": 1, "result": "not needed"}]
    assert told(cluster, "cluster", "elect", "--all") == {"partitions": []}


def test_no_leader_can_be_elected_for_a_partition_that_is_not_there(cluster: LocalCluster) -> None:
    for more in [], ["--json"]:
        done = run(cluster, "cluster", "elect", "--topic", "healthy", "--partition", "9", *more, code=1)
        assert done.stderr.startswith("pipeline: no leader was elected for healthy-9: UNKNOWN_TOPIC_OR_PARTITION")
        assert "healthy" in done.stdout


def test_a_broker_that_is_gone(cluster: LocalCluster) -> None:
    run(cluster, "topic", "create", "needs-all", "--replication-factor", "3", "--config", "min.insync.replicas=3")
    run(cluster, "topic", "create", "single", "--partitions", "3")
    wait_for("all in sync", lambda: told_dead(cluster)["under_replicated"] == [])
    cluster.kill("broker-3", signal.SIGTERM)

    def check() -> None:
        found = told_dead(cluster)
        assert not found["brokers"][2]["alive"]
        assert {(row["topic"], row["min_isr"]) for row in found["below_min_isr"]} == {("needs-all", 3)}
        assert {row["topic"] for row in found["under_replicated"]} >= {"healthy", "needs-all"}
        assert {row["topic"] for row in found["offline"]} <= {"single", "slow"}
        offline = [row for row in found["offline"] if row["topic"] == "single"]
        assert [row["advice"] for row in offline] == ["start broker 3"]
        shown = run(cluster, "cluster", "describe", code=1).stdout
        assert "single-" in shown
        assert "start broker 3" in shown

    wait_until_true(check)
    failed = told(cluster, "cluster", "elect", "--unclean", "--topic", "single", code=1)["partitions"]
    assert sum(row["result"] == "not needed" for row in failed) == 2
    assert sum("ELIGIBLE_LEADERS_NOT_AVAILABLE" in row["result"] for row in failed) == 1


def asked_over_http(cluster: LocalCluster, broker: int, path: str) -> str:
    settings = tomllib.loads((cluster.directory / f"broker-{broker}" / "broker.toml").read_text())
    answer = httpx.get(f"http://{settings['http.listen']}/{path}", trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_broker_is_well_though_another_is_gone(cluster: LocalCluster) -> None:
    for broker in (1, 2):
        asked_over_http(cluster, broker, "healthz")
        asked_over_http(cluster, broker, "readyz")


def test_metrics_report_troubles_of_the_cluster(cluster: LocalCluster) -> None:
    def total(name: str) -> float:
        pages = [asked_over_http(cluster, broker, "metrics") for broker in (1, 2)]
        return sum(float(value) for page in pages for value in re.findall(rf"^{name} (\S+)", page, re.MULTILINE))

    def check() -> None:
        described = told_dead(cluster)
        assert total("kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert total("kafka_controller_kafkacontroller_offlinepartitionscount") == len(described["offline"]) > 0
        assert total("kafka_controller_controllerstats_uncleanleaderelections_total") == 0
        assert total("kafka_server_replicamanager_underminisrpartitioncount") == 1
        assert total("kafka_server_replicamanager_underreplicatedpartitions") == len(described["under_replicated"]) > 0

    wait_until_true(check)


def test_a_topic_without_a_leader_is_described(cluster: LocalCluster) -> None:
    partitions = told(cluster, "topic", "describe", "single")["partitions"]
    assert [(row["leader"], row["high_watermark"]) for row in partitions if row["replicas"] == [3]] == [(None, None)]


def told_dead(cluster: LocalCluster) -> Any:
    done = CliRunner().invoke(app, ["cluster", "describe", "--json", "-b", cluster.bootstrap])
    return json.loads(done.stdout)


def test_waiting_for_a_move_ends_when_its_target_stays_away(cluster: LocalCluster, tmp_path: Path) -> None:
    run(cluster, "topic", "create", "stuck", "--config", "min.insync.replicas=1")
    here = replicas_of(cluster, "stuck")[0][0]
    target = next(broker for broker in (1, 2) if broker != here)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for _ in range(20_000):
        producer.produce("stuck", RECORD)
    assert producer.flush(180) == 0
    plan = plan_for(tmp_path / "plan.json", "stuck", [target])
    program = (
        "import sys; from pipeline.cli.cluster import reassign; from pipeline.cli.main import app;"
        " reassign.MISSING_TARGET_S = 2.0; app(sys.argv[1:])"
    )
    command = ["cluster", "reassign", "apply", plan, "--throttle", "1", "--wait", "-b", cluster.bootstrap]
    with subprocess.Popen([sys.executable, "-c", program, *command], stderr=subprocess.PIPE, text=True) as waiting:
        wait_for("the move", lambda: len(told(cluster, "cluster", "reassign", "status")["moving"]) == 1)
        cluster.kill(f"broker-{target}", signal.SIGTERM)
        _, said = waiting.communicate(timeout=240)
    assert waiting.returncode == 1
    assert f"have not been alive for 2 s: {target} (stuck-0)" in said
    assert "pipeline cluster reassign cancel --topic stuck" in said
    assert told(cluster, "cluster", "reassign", "cancel", "--topic", "stuck")["cancelled"] != []
    wait_for("the former replica", lambda: replicas_of(cluster, "stuck") == [[here]])
