import math
from collections.abc import Callable

import httpx
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pipeline.errors import NetworkError, PipelineError
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.work.schema_work import SchemaWork
from pipeline.schema_registry.writing.freshness import AskLogEnd, Freshness, LogEnd, ask_registries
from pipeline.schema_registry.writing.log_follower import LogFollower
from pipeline.schema_registry.writing.writers import Stamp, WriterClaim, encode_claim
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.unit.schema_registry.test_forward_targets import answering

WRITER, OTHER = Stamp(3, "a"), Stamp(1, "b")


class Source:
    """The registries where the log is written: what they answer, or nothing."""

    def __init__(self) -> None:
        self.end: LogEnd | None = None

    async def ask(self) -> LogEnd:
        await trio.lowlevel.checkpoint()
        if self.end is None:
            raise NetworkError("nobody answers")
        return self.end


async def test_the_staleness_is_the_time_since_the_last_proof(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    metrics, source = CollectorRegistry(), Source()
    state = RegistryState(CompatibilityLevel.NONE)
    follower = LogFollower(journal, state, SchemaWork().events, metrics=metrics)
    await nursery.start(follower.run)
    freshness = Freshness(follower, source.ask, metrics=metrics)
    nursery.start_soon(freshness.run)

    def shown() -> float:
        return metrics.get_sample_value("registry_staleness_seconds") or 0.0

    assert freshness.warning() is None
    await trio.sleep(30)
    assert freshness.staleness_s is None
    assert math.isnan(shown())
    assert "never proven" in (freshness.warning() or "")
    source.end = LogEnd(1, WRITER)  # a record that did not arrive yet
    await trio.sleep(30)
    assert freshness.staleness_s is None
    journal.put(*encode_claim(WriterClaim(WRITER, "")), WRITER.encode())
    await trio.sleep(15)
    assert freshness.staleness_s is not None
    assert freshness.staleness_s < 2
    source.end = LogEnd(2, WRITER)  # the mirror is away
    await trio.sleep(30)
    assert 28 < freshness.staleness_s < 32
    journal.put(b"x", b"y")
    await trio.sleep(15)
    assert freshness.staleness_s < 2
    source.end = None  # the source is away
    await trio.sleep(70)
    assert 68 < freshness.staleness_s < 73
    assert "s old" in (freshness.warning() or "")
    source.end = LogEnd(1, OTHER)  # another log, which was begun anew under the name
    await trio.sleep(30)
    assert freshness.staleness_s > 98
    source.end = LogEnd(0, None)
    await trio.sleep(30)
    assert freshness.staleness_s > 128


async def test_offsets_of_another_cluster_prove_nothing_about_a_log_that_does_not_keep_them(
    journal: MemoryJournal,
) -> None:
    answers: list[str] = ['{"offset":1e999,"writer":null}', "[" * 100_000, '{"offset":null,"writer":null}', "[]"]

    async def answer(_request: Request) -> Response:
        return Response(answers.pop())

    follower = LogFollower(
        journal, RegistryState(CompatibilityLevel.NONE), SchemaWork().events, metrics=CollectorRegistry()
    )
    async with serving_registry(journal) as url, httpx.AsyncClient() as http, answering(answer) as hostile:

        def ask(own_cluster: Callable[[], str | None] | None, *urls: str) -> AskLogEnd:
            return ask_registries(http, urls, follower, own_cluster, timeout_s=30)

        urls = ["http://[", *[hostile] * len(answers), url]
        assert await ask(None, *urls)() == LogEnd(0, None)  # a copy that keeps offsets
        assert await ask(lambda: None, url)() == LogEnd(0, None)  # the same cluster
        with pytest.raises(PipelineError):
            await ask(lambda: "another", url)()


async def test_a_registry_that_does_not_know_the_latest_writer_proves_nothing(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    follower = LogFollower(
        journal, RegistryState(CompatibilityLevel.NONE), SchemaWork().events, metrics=CollectorRegistry()
    )
    for writer in (OTHER, WRITER):
        journal.put(*encode_claim(WriterClaim(writer, "")), writer.encode())
    await nursery.start(follower.run)
    answers: list[LogEnd] = []

    async def answer(_request: Request) -> Response:
        end = answers.pop(0)
        writer = end.writer and {"epoch": end.writer.epoch, "name": end.writer.writer, "url": ""}
        return JSONResponse({"cluster_id": "", "offset": end.offset, "writer": writer})

    async with httpx.AsyncClient() as http, answering(answer) as url:
        ask = ask_registries(http, [url, url], follower, None, timeout_s=30)
        former = (LogEnd(2, OTHER), LogEnd(2, Stamp(3, "anotherOfItsEpoch")), LogEnd(2, None))
        for end in former:
            answers[:] = [end, end]
            with pytest.raises(PipelineError):
                await ask()
            for hub in (LogEnd(9, WRITER), LogEnd(9, Stamp(4, "newer"))):
                answers[:] = [end, hub]
                assert await ask() == hub
