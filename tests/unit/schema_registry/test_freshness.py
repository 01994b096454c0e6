import math

import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.errors import NetworkError
from pipeline.schema_registry.compatibility import CompatibilityLevel
from pipeline.schema_registry.freshness import Freshness, LogEnd
from pipeline.schema_registry.log_follower import LogFollower
from pipeline.schema_registry.schema_work import SchemaWork
from pipeline.schema_registry.state import RegistryState
from pipeline.schema_registry.writers import Stamp, WriterClaim, encode_claim
from pipeline.testing.memory_journal import MemoryJournal

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
