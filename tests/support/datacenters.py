"""Two live datacenters and a hub for tests that are not written in trio: they run in a thread of their own."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import trio

from pipeline.cli.demo.datacenters import Datacenters

START_DEADLINE_S = 400


@contextmanager
def running_datacenters(directory: Path, topics: list[str]) -> Iterator[dict[str, str]]:
    """Bootstrap addresses by datacenter."""
    directory.mkdir(parents=True, exist_ok=True)
    datacenters = Datacenters(directory, topics)
    started: Future[tuple[trio.lowlevel.TrioToken, trio.Event]] = Future()

    async def serve() -> None:
        async with datacenters:
            ended = trio.Event()
            started.set_result((trio.lowlevel.current_trio_token(), ended))
            await ended.wait()

    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(trio.run, serve)
        served.add_done_callback(lambda done: None if started.done() else started.set_exception(_failure(done)))
        token, ended = started.result(START_DEADLINE_S)
        try:
            yield datacenters.bootstrap
        finally:
            token.run_sync_soon(ended.set)
            served.result()


def _failure(done: Future[None]) -> BaseException:
    return done.exception() or RuntimeError("the datacenters ended at once")
