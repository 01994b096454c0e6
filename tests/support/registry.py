"""A schema registry in this process, over any journal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import trio
from prometheus_client import CollectorRegistry

from pipeline.model import HostPort
from pipeline.net.nurseries import unwrapped_errors
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.page.registry_page import AskTopics, no_topics
from pipeline.schema_registry.server import serve_registry
from pipeline.schema_registry.writing.journal import SchemaJournal
from pipeline.schema_registry.writing.kafka_journal import LogTopic
from pipeline.testing.memory_journal import MemoryJournal


@asynccontextmanager
async def serving_registry(
    journal: SchemaJournal,
    ask_topics: AskTopics = no_topics,
    /,
    *,
    guard: SchemaJournal | None = None,
    is_copy: bool = False,
    is_promoted: bool = False,
    metrics: CollectorRegistry | None = None,
    **settings: Any,
) -> AsyncIterator[str]:
    """Serve a registry over the journal until the block ends; gives its URL. Settings by their dotted names.

    Without `guard` no id was given out before; with `is_copy` the journal is a copy, which this registry never writes,
    with `is_promoted` it was one.
    """
    given = {"bootstrap.servers": "none:1", "http.listen": "127.0.0.1:0", **settings}
    config = RegistryConfig.from_settings(given)
    deadline = trio.current_time() + config.init_timeout_ms / 1000

    async def serve(task_status: trio.TaskStatus[HostPort]) -> None:
        await serve_registry(
            config,
            journal,
            None if is_copy else guard or MemoryJournal(),
            name=uuid4().hex,
            replay_deadline=deadline,
            metrics=metrics or CollectorRegistry(),
            origin=LogTopic(is_copy=is_copy, is_promoted=is_promoted),
            ask_topics=ask_topics,
            task_status=task_status,
        )

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            address: HostPort = await nursery.start(serve)
            yield f"{config.http.scheme}://{address}"
            nursery.cancel_scope.cancel()
