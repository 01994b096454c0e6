"""A broker that has joined serves at once: whatever takes time comes before that."""

from functools import partial
from pathlib import Path
from random import Random

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.coordination.znodes import broker_path
from pipeline.model import BrokerId
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock

DEADLINE_S = 60


async def test_a_broker_is_not_registered_while_it_waits_for_the_keys_of_tokens(tmp_path: Path) -> None:
    zookeeper, asked, answers = MemoryZooKeeper(), trio.Event(), trio.Event()

    async def hang(stream: trio.SocketStream) -> None:
        asked.set()
        await answers.wait()
        await stream.aclose()

    with trio.fail_after(DEADLINE_S):
        async with zookeeper.open() as client, trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, hang, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
            config = BrokerConfig.from_settings(
                {
                    "broker.id": 1,
                    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://localhost:0",
                    "log.dirs": str(tmp_path / "logs"),
                    "zookeeper.connect": "memory:0",
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": f"http://127.0.0.1:{port}/keys",
                    "sasl.oauthbearer.expected.audience": "kafka",
                }
            )
            run = partial(
                run_broker,
                config,
                client,
                clock=clock,
                rng=Random(1),
                observer=NoObserver(),
                metrics=CollectorRegistry(),
            )
            path, is_serving = broker_path(BrokerId(1)), trio.Event()

            async def start() -> None:
                await nursery.start(run)
                is_serving.set()

            nursery.start_soon(start)
            await asked.wait()
            assert path not in zookeeper.znodes.by_path
            answers.set()
            await is_serving.wait()
            assert path in zookeeper.znodes.by_path
            nursery.cancel_scope.cancel()
