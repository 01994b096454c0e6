from collections.abc import Callable
from typing import Any

import pytest
import trio

from pipeline.errors import DeadlineExceededError, NetworkError
from pipeline.model import HostPort
from pipeline.net.answers import Peer
from pipeline.net.connection_pool import LostConnection, open_connection_pool
from pipeline.net.dialing import Dialer
from pipeline.net.network import SOCKETS
from pipeline.net.transport import SocketTransport, Transport
from pipeline.protocol.connection import Request
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.messages.produce import ProduceRequest
from pipeline.protocol.schema import Message

TIMEOUT_S = 60
VERSIONS = ApiVersionsResponse(
    api_keys=(
        ApiVersion(api_key=18, min_version=0, max_version=3),
        ApiVersion(api_key=3, min_version=0, max_version=5),
        ApiVersion(api_key=0, min_version=3, max_version=7),
        ApiVersion(api_key=20, min_version=90, max_version=99),
    ),
    supported_features=(SupportedFeatureKey(name="feature", min_version=1, max_version=2),),
)


def metadata_of(name: str) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(name=name),))


def handle(request: Request[Message], peer: Peer) -> Any:
    match request.body:
        case ApiVersionsRequest():
            return VERSIONS
        case MetadataRequest(topics=topics):
            assert request.api_version == 5
            assert topics
            name = topics[0].name
            return wait_for_ever() if name == "never" else MetadataResponse(cluster_id=name)
    return None


async def wait_for_ever() -> MetadataResponse:
    await trio.sleep_forever()
    return MetadataResponse()


@pytest.mark.parametrize("host", ["kafka..example", "x" * 64])
async def test_a_name_that_no_host_can_have_is_a_network_error(host: str) -> None:
    async with open_connection_pool("test") as pool:
        with pytest.raises(NetworkError, match="no host has such a name"):
            await pool.request(HostPort(host, 9092), metadata_of("t"), timeout_s=TIMEOUT_S)


async def test_requests_share_a_connection_and_get_their_own_answers(serve: Any) -> None:
    async with serve(handle) as (address, server), open_connection_pool("test") as pool:
        answers: dict[str, str] = {}
        assert pool.round_trip_s(address) is None

        async def ask(name: str) -> None:
            answers[name] = (await pool.request(address, metadata_of(name), timeout_s=TIMEOUT_S)).cluster_id

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, f"t{number}")
        assert answers == {f"t{number}": f"t{number}" for number in range(50)}
        assert server.statistics.accepted == 1
        first_s = pool.round_trip_s(address)
        await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S, lane="fetch")
        assert server.statistics.accepted == 2
        assert first_s is not None
        assert 0 < (pool.round_trip_s(address) or 0) <= first_s < TIMEOUT_S
        assert await pool.features(address, timeout_s=TIMEOUT_S) == {"feature": (1, 2)}


async def test_acks_0_returns_at_once(serve: Any) -> None:
    async with serve(handle) as (address, _), open_connection_pool("test") as pool:
        assert await pool.request(address, ProduceRequest(acks=0), timeout_s=TIMEOUT_S) is None
        response = await pool.request(address, metadata_of("after"), timeout_s=TIMEOUT_S)
        assert response.cluster_id == "after"


async def test_a_missed_deadline_closes_the_connection_and_the_next_request_opens_another(serve: Any) -> None:
    async with serve(handle) as (address, server), open_connection_pool("test") as pool:
        failures: list[Exception] = []

        async def ask_patiently() -> None:
            try:
                await pool.request(address, metadata_of("behind"), timeout_s=TIMEOUT_S)
            except NetworkError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:

            async def ask_hastily() -> None:
                with pytest.raises(DeadlineExceededError):
                    await pool.request(address, metadata_of("never"), timeout_s=2)

            nursery.start_soon(ask_hastily)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask_patiently)
        assert len(failures) == 1
        assert (await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S)).cluster_id == "t"
        assert server.statistics.accepted == 2


async def test_a_cancelled_request_leaves_the_connection_usable(serve: Any) -> None:
    release = trio.Event()

    async def answer_when_released() -> MetadataResponse:
        await release.wait()
        return MetadataResponse(cluster_id="released")

    def hold(request: Request[Message], peer: Peer) -> Any:
        if isinstance(request.body, MetadataRequest) and request.body.topics[0].name == "held":  # type: ignore[index]
            return answer_when_released()
        return handle(request, peer)

    async with serve(hold) as (address, server), open_connection_pool("test") as pool:
        await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await pool.request(address, metadata_of("held"), timeout_s=TIMEOUT_S)

                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        release.set()
        assert (await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S)).cluster_id == "t"
        assert server.statistics.accepted == 1


async def test_a_version_that_no_one_shares_is_refused_here(serve: Any) -> None:
    from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest

    async with serve(handle) as (address, _), open_connection_pool("test") as pool:
        with pytest.raises(KafkaError) as raised:
            await pool.request(address, DeleteTopicsRequest(), timeout_s=TIMEOUT_S)
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_request_to_a_port_without_listener_fails() -> None:
    listeners = await SOCKETS.listen(HostPort("127.0.0.1", 0))
    port = listeners[0].port
    for listener in listeners:
        listener.close()
    async with open_connection_pool("test") as pool:
        with pytest.raises(NetworkError, match="cannot connect"):
            await pool.request(HostPort("127.0.0.1", port), metadata_of("t"), timeout_s=TIMEOUT_S)


async def test_errors_of_the_block_leave_it_as_they_are() -> None:
    with pytest.raises(KeyError):
        async with open_connection_pool("test"):
            raise KeyError


async def test_a_server_that_hangs_up_is_noticed(serve: Any) -> None:
    lost: list[LostConnection] = []

    async def ask_in_vain() -> None:
        with pytest.raises(NetworkError):
            await pool.request(address, metadata_of("never"), timeout_s=TIMEOUT_S, lane="fetch 1")

    async with open_connection_pool("test") as pool, trio.open_nursery() as nursery:
        pool.on_lost = lost.append
        async with serve(handle) as (address, _):
            await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S)
            assert not pool.is_asked(address, "")
            nursery.start_soon(ask_in_vain)
            with trio.fail_after(TIMEOUT_S):
                while not pool.is_asked(address, "fetch"):
                    await trio.sleep(0.01)
        with pytest.raises(NetworkError):
            await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S)
        assert not pool.is_asked(address, "")
    assert sorted(lost) == [LostConnection(address, "", True), LostConnection(address, "fetch 1", False)]


async def test_a_closed_lane_ends_its_requests_and_no_others_and_is_no_lost_connection(serve: Any) -> None:
    arrived: list[Message] = []
    ended: list[str] = []

    def note(request: Request[Message], peer: Peer) -> Any:
        arrived.append(request.body)
        return handle(request, peer)

    async def until(condition: Callable[[], bool]) -> None:
        with trio.fail_after(TIMEOUT_S):
            while not condition():
                await trio.sleep(0.01)

    async with serve(note) as (address, _), open_connection_pool("test") as pool:
        pool.on_lost = lambda _: ended.append("lost")

        async def ask(lane: str) -> None:
            with pytest.raises(NetworkError, match=f"the client of the lane '{lane}' .* is closed"):
                await pool.request(address, metadata_of("never"), timeout_s=TIMEOUT_S, lane=lane)
            ended.append(lane)

        async with trio.open_nursery() as nursery:
            for lane in ("a", "b"):
                nursery.start_soon(ask, lane)
            await until(lambda: arrived.count(metadata_of("never")) == 2)
            pool.close_lane("a")
            await until(lambda: bool(ended))
            assert ended == ["a"]
            pool.close_lane("b")
        assert (await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S, lane="a")).cluster_id == "t"
        assert ended == ["a", "b"]


async def test_an_answer_that_arrives_while_its_lane_is_closed_is_dropped(serve: Any) -> None:
    """A connection with a lot to read gives way to other tasks, one of which may close it."""
    is_slow = False
    arrived, closed = trio.Event(), trio.Event()

    class Slow(SocketTransport):
        __slots__ = ()

        async def receive_into(self, buffer: memoryview, due: int = 1) -> int:
            received = await super().receive_into(buffer, due)
            if is_slow:
                arrived.set()
                await closed.wait()
            return received

    async def connect_slowly(address: HostPort) -> Transport:
        transport = await SOCKETS.connect(address)
        transport.__class__ = Slow
        return transport

    async with serve(handle) as (address, _), open_connection_pool("test", Dialer(connect_slowly)) as pool:
        await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S, lane="a")
        is_slow = True
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(NetworkError, match="lane 'a'"):
                    await pool.request(address, metadata_of("t"), timeout_s=TIMEOUT_S, lane="a")

            nursery.start_soon(ask)
            await arrived.wait()
            is_slow = False
            pool.close_lane("a")
            closed.set()
        assert (await pool.request(address, metadata_of("u"), timeout_s=TIMEOUT_S, lane="b")).cluster_id == "u"
