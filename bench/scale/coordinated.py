"""The process of one broker's coordination, for the bench of failovers: `python -m bench.scale.coordinated JSON`.

It has the controller, watchers and registration of a broker, and nothing else. Each line of its input is a question, to
which it prints a line of JSON with the CPU seconds of the process so far.
"""

import json
import os
import sys
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from bench.processes import resident_bytes
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.controller import reign
from pipeline.cli.terminal.output import configure_logging
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.model import BrokerId
from pipeline.net.heap import free_large_blocks, keep_one_heap
from tests.support.controllers import running

POLL_S = 0.05


class _Server:
    """A ZooKeeper at an address."""

    def __init__(self, connect: str) -> None:
        self._connect = connect

    def open(self) -> AbstractAsyncContextManager[ZooKeeper]:
        """A session."""
        return open_zookeeper(self._connect)


def main() -> None:
    """Answer questions until the input ends."""
    configure_logging("error")
    keep_one_heap()
    free_large_blocks()
    # Both are asked for by hand, so that no figure has them by chance.
    reign.STATES_CHECK_INTERVAL_S = reign.QUIET_S = 1e6
    trio.run(_answer, json.loads(sys.argv[1]))


async def _answer(asked: dict[str, Any]) -> None:
    async with running(_Server(asked["zookeeper"]), asked["broker"]) as rig:
        await rig.until(lambda view: view.controller > 0)
        _say({"controller": rig.view.controller})
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            question = json.loads(line)
            if question["until"] == "read":
                await rig.controller.states.read_all()
            # Looking at each change of the view would cost more than what is measured.
            while True:
                if _is_reached(rig.view, question):
                    break
                await trio.sleep(POLL_S)
            _say({})


def _say(more: dict[str, Any]) -> None:
    print(json.dumps({"cpu": time.process_time(), "bytes": resident_bytes(os.getpid()), **more}), flush=True)


def _is_reached(view: ClusterView, question: dict[str, Any]) -> bool:
    topics = list(reversed(list(view.topics())))
    match question["until"]:
        case "led":
            counts = [len(topic.partitions) == question["partitions"] and topic.is_led for topic in topics]
            return len(counts) == question["topics"] and all(counts)
        case "moved":
            broker = BrokerId(question["broker"])
            return all(each.leader != broker for topic in topics for each in topic.partitions.values())
        case "settled":
            broker = BrokerId(question["broker"])
            return all(broker not in each.isr for topic in topics for each in topic.partitions.values())
    return True


if __name__ == "__main__":
    main()
