"""What a broker says of itself while ZooKeeper is away."""

import httpx
import trio

from pipeline.broker.session_watch import SessionWatch
from pipeline.coordination.interface import SessionEvent, SessionId, SessionState
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.unit.broker.conftest import TIMEOUT_S, Broker, Start

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
