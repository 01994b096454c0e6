from collections.abc import AsyncIterator

import pytest

from tests.support.scripted_registry import ScriptedRegistry, scripted_registry


@pytest.fixture
async def registry() -> AsyncIterator[ScriptedRegistry]:
    async with scripted_registry() as registry:
        yield registry
