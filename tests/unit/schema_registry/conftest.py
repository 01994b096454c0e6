from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def open_registry() -> Callable[..., Any]:
    """Serves a registry over a journal; gives an HTTP client of it."""

    @asynccontextmanager
    async def run(journal: MemoryJournal, **settings: Any) -> AsyncIterator[Any]:
        async with serving_registry(journal, **settings) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield http

    return run
