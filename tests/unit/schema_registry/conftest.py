from contextlib import asynccontextmanager

import httpx
import pytest

from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry


@pytest.fixture
def journal():
    return MemoryJournal()


@pytest.fixture
def open_registry():
    """Serves a registry over a journal; gives an HTTP client of it."""

    @asynccontextmanager
    async def run(journal, **settings):
        async with serving_registry(journal, **settings) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield http

    return run
