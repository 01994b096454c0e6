"""What a broker says of itself while ZooKeeper is away."""

import math
from collections.abc import Callable

import httpx
import structlog
import trio

from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.coordination.interface import SessionEvent, SessionId, SessionState
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch

CONTROLLER = "kafka_controller_kafkacontroller_"
PREFIX = "kafka_server_sessionexpirelistener_"


def value(broker: Broker, name: str, **labels: str) -> float | None:
    return broker.metrics.get_sample_value(name, labels)


async def test_a_broker_without_zookeeper_says_so(start: Start, zookeeper_twin: MemoryZooKeeper) -> None:
    async with (
        start(zookeeper_session_timeout_ms=1000) as broker,
        httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http,
    ):

        async def until(ready: int) -> str:
            with trio.fail_after(TIMEOUT_S):
                while (found := await http.get("/readyz")).status_code != ready:
                    await trio.sleep(0.01)
            return found.text

        async def silence_ms() -> int:
            told: int = (await broker.ask(DescribeClusterRequest())).zookeeper_silence_ms
            return told

        await until(200)
        assert value(broker, f"{PREFIX}sessionstate", sessionstate="CONNECTED") == 1
        assert value(broker, f"{PREFIX}zookeeperdisconnects_total") == 0
        assert value(broker, "pipeline_zookeeper_silence_seconds") == 0
        assert value(broker, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert await silence_ms() == 0

        zookeeper_twin.stop()
        assert "no contact to ZooKeeper" in await until(503)
        healthz = await http.get("/healthz")
        assert healthz.status_code == 200, "a restart would not help"
        assert "no contact to ZooKeeper" in healthz.json()["warnings"][0]
        assert value(broker, f"{PREFIX}sessionstate", sessionstate="CONNECTED") == 0
        assert value(broker, f"{PREFIX}sessionstate", sessionstate="CONNECTING") == 1
        assert value(broker, f"{PREFIX}zookeeperdisconnects_total") == 1
        assert (value(broker, "pipeline_zookeeper_silence_seconds") or 0) >= 1
        assert value(broker, "kafka_controller_kafkacontroller_activecontrollercount") == 0
        assert await silence_ms() >= 1000

        zookeeper_twin.start()
        await until(200)
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert value(broker, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert await silence_ms() == 0


async def test_metrics_are_absent_that_a_broker_cannot_know_without_zookeeper(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    fast = {"zookeeper_session_timeout_ms": 1000, "replica_lag_time_max_ms": 200, "replica_fetch_wait_max_ms": 50}
    async with start(1, **fast) as first, start(2, **fast) as second:
        brokers = (first, second)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=2)
        name = TopicPartition("t", 0)

        async def until(is_so: Callable[[], object]) -> None:
            with trio.fail_after(TIMEOUT_S):
                while not is_so():
                    await trio.sleep(0.01)

        def told(metric: str) -> list[float | None]:
            return [value(broker, metric) for broker in brokers]

        def find_leader() -> Broker | None:
            found = ((broker, broker.handle.replicas.partitions.get(name)) for broker in brokers)
            return next((broker for broker, partition in found if partition and partition.is_leader), None)

        await until(lambda: all(len(broker.handle.replicas.in_sync.view.brokers) == 2 for broker in brokers))
        await first.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_S * 1000))
        await until(find_leader)
        leader = find_leader()
        assert leader is not None
        follower = first if leader is second else second
        under = "kafka_server_replicamanager_underreplicatedpartitions"
        await until(lambda: value(leader, under) == 0)
        assert told(f"{CONTROLLER}offlinepartitionscount") == [0, 0]

        zookeeper_twin.stop()
        await until(lambda: follower.handle.replicas.fetchers.remove([name]))
        assert (await leader.produce("t", batch(b"x"), acks=1)).error_code == ErrorCode.NONE
        await until(lambda: value(leader, under) == 1)
        assert len(leader.handle.replicas.partitions[name].isr) == 2
        assert value(leader, "kafka_server_replicamanager_atminisrpartitioncount") == 1
        unknown = [f"{CONTROLLER}{metric}" for metric in ("offlinepartitionscount", "preferredreplicaimbalancecount")]
        await until(lambda: all(math.isnan(found or 0) for metric in unknown for found in told(metric)))
        zookeeper_twin.start()
        await until(lambda: told(f"{CONTROLLER}offlinepartitionscount") == [0, 0])


async def test_a_short_silence_is_told_by_the_metrics_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with MemoryZooKeeper().open() as client:
        watch = SessionWatch(client, timeout_s=10)
        one, two = SessionId(1), SessionId(2)
        watch.note(SessionEvent(SessionState.CONNECTED, one))
        watch.note(SessionEvent(SessionState.SUSPENDED, one))
        await trio.sleep(9)
        assert (watch.silence_s, watch.problem) == (9, None)
        watch.note(SessionEvent(SessionState.EXPIRED, one))
        await trio.sleep(1)
        assert watch.problem is not None, "a session that is lost brings no contact"
        watch.note(SessionEvent(SessionState.CONNECTED, two))
        assert (watch.silence_s, watch.problem) == (0, None)
        watch.note(SessionEvent(SessionState.CONNECTED, two))
        assert (watch.connects, watch.disconnects, watch.expires) == (3, 2, 1)


async def test_a_long_silence_is_logged_until_zookeeper_is_back(autojump_clock: trio.testing.MockClock) -> None:
    service = MemoryZooKeeper()
    async with service.open() as client, trio.open_nursery() as nursery:
        watch = SessionWatch(client, timeout_s=10)
        nursery.start_soon(watch.run)
        with structlog.testing.capture_logs() as log:
            await trio.sleep(100)
            service.stop()
            await trio.sleep(9)
            assert log == []
            await trio.sleep(66)
            service.start()
            await trio.sleep(10)
        assert [each["event"] for each in log] == ["zookeeper_unreachable"] * 3 + ["zookeeper_reached"]
        assert (log[0]["log_level"], "no contact to ZooKeeper for 1" in log[0]["reason"]) == ("warning", True)
        nursery.cancel_scope.cancel()
