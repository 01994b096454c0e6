"""Our schema registry in a thread, for commands that run a loop of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import trio

from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry


@contextmanager
def registry_in_thread(**settings: Any) -> Iterator[str]:
    """Serve a registry over a journal in memory until the block ends; gives its URL."""
    started: Queue[tuple[str, trio.lowlevel.TrioToken, trio.Event]] = Queue()

    async def serve() -> None:
        stop = trio.Event()
        async with serving_registry(MemoryJournal(), **settings) as url:
            started.put((url, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=[serve])
    thread.start()
    url, token, stop = started.get(timeout=60)
    try:
        yield url
    finally:
        trio.from_thread.run_sync(stop.set, trio_token=token)
        thread.join()
