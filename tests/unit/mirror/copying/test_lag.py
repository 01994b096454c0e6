"""The lag that a mirror reports while a source, a leader or the hub is away: known and right, or unknown."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.errors import NetworkError
from pipeline.mirror.copying import replica_ends
from pipeline.mirror.service import MirrorService
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.produce import ProduceRequest
from tests.support.brokers import Brokers, replicated_cluster
from tests.support.mirrors import CLICKS, NOBODY, Site, make, publish, reason_of, until, until_copied


def line_of(service: MirrorService, partition: int = 0) -> dict[str, Any]:
    """What the status says of a partition of `clicks` in east; {} if nothing."""
    (east,) = [source for source in service.status()["sources"] if source["name"] == "east"]
    return next((line for line in east["partitions"] if line["partition"] == partition), {})


def metric(site: Site, name: str, partition: int = 0) -> float | None:
    return site.metrics.get_sample_value(name, {"source": "east", "topic": "clicks", "partition": str(partition)})


def is_unknown(site: Site, service: MirrorService, partition: int = 0) -> bool:
    """True if no number is given for the lag, neither in the status nor in the metrics."""
    line = line_of(service, partition)
    shown = [line.get(key, 0) for key in ("lag", "lag_seconds", "lag_bytes")]
    values = [metric(site, f"mirror_lag_{unit}", partition) for unit in ("offsets", "seconds", "bytes")]
    return shown == [None] * 3 and all(value is not None and isnan(value) for value in values)


def is_caught_up(site: Site, service: MirrorService, partition: int = 0) -> bool:
    line = line_of(service, partition)
    shown = (line.get("lag"), line.get("lag_seconds"), line.get("state"), line.get("error"))
    return shown == (0, 0, "caught_up", None) and metric(site, "mirror_lag_offsets", partition) == 0


@asynccontextmanager
async def caught_up(site: Site, **settings: Any) -> AsyncIterator[MirrorService]:
    """A mirror that has copied `clicks` of east, which has one record."""
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring(**settings) as service:
        await until(lambda: is_caught_up(site, service))
        yield service


def is_behind(site: Site, service: MirrorService, offsets: int) -> bool:
    return line_of(service)["lag"] == offsets and metric(site, "mirror_lag_offsets") == offsets


def unknown_lags(site: Site) -> float | None:
    return site.metrics.get_sample_value("mirror_unknown_lag_partitions", {"source": "east"})


def in_state(site: Site, state: str) -> float | None:
    return site.metrics.get_sample_value("mirror_partitions", {"source": "east", "state": state})


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *kinds: type) -> Iterator[None]:
    """Requests of these kinds, or all, are not answered while the block lasts: connections stay open."""
    request, is_over = cluster.request, trio.Event()

    async def hang(broker: Any, message: Any, *, timeout_s: float, **lane: Any) -> Any:
        if not kinds or isinstance(message, kinds):
            with trio.move_on_after(timeout_s):
                await is_over.wait()
            raise NetworkError("hangs")
        return await request(broker, message, timeout_s=timeout_s, **lane)

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "request", hang)
        yield
        is_over.set()


@asynccontextmanager
async def mortal_east(site: Site, directory: Path) -> AsyncIterator[Brokers]:
    """East as a broker that a test stops, with the topic and a record."""
    async with replicated_cluster(directory, brokers=1) as east:
        site.east = east.cluster
        await make(site.east)
        await publish(site.east, b"a")
        yield east


@pytest.mark.long
async def test_a_source_that_hangs_has_unknown_lag_until_it_answers_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caught_up(site) as service:
        with hanging(monkeypatch, site.east):
            await until(lambda: is_unknown(site, service))
            line = line_of(service)
            assert (line["state"], line["high_watermark"]) == ("silent", None)
            assert "has not answered" in line["error"]
            assert line["answer_age_seconds"] > 5
            assert in_state(site, "silent") == unknown_lags(site) == 1
        await until(lambda: is_caught_up(site, service))
        assert unknown_lags(site) == 0


@pytest.mark.long
async def test_a_source_that_was_killed_has_unknown_lag_also_after_a_restart_of_the_mirror(
    site: Site, tmp_path: Path
) -> None:
    async with mortal_east(site, tmp_path / "mortal") as east:
        async with site.mirroring() as service:
            await until(lambda: is_caught_up(site, service))
            await east.stop(1)
            await until(lambda: is_unknown(site, service))
            await until(lambda: site.is_up("east") == 0)
        async with site.mirroring() as service:
            await until(lambda: is_unknown(site, service))
            assert line_of(service)["state"] == "locating"
            assert unknown_lags(site) == 1
            await until(lambda: not service.status()["sources"][0]["up"])
            assert is_unknown(site, service)
            await east.start(1)
            await until(lambda: is_caught_up(site, service))


async def test_a_source_whose_fetches_fail_has_the_lag_that_its_leader_reports(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caught_up(site) as service:
        with hanging(monkeypatch, site.east, FetchRequest):
            await publish(site.east, b"b", b"c")  # the first may still be copied by a Fetch request that was under way
            await until(lambda: line_of(service)["high_watermark"] == 3 and line_of(service)["lag"] > 0)
            await until(lambda: line_of(service)["lag_seconds"] > 1)
            assert site.is_up("east") == 1
        await until(lambda: is_caught_up(site, service))


async def test_a_source_whose_metadata_fail_is_down_while_its_known_partitions_are_copied(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caught_up(site) as service:

        async def fail(**_settings: Any) -> None:
            raise NetworkError("no metadata today")

        monkeypatch.setattr(site.east, "fetch_all_topics", fail)
        await until(lambda: site.is_up("east") == 0)
        assert service.status()["sources"][0]["error"] == "no metadata today"
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until(lambda: is_caught_up(site, service))


@pytest.mark.long
async def test_metadata_that_hang_make_a_source_down_before_the_request_times_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    async with site.mirroring() as service:
        await until(lambda: site.is_up("east") == 1)

        async def hang(**_settings: Any) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(site.east, "fetch_all_topics", hang)
        await until(lambda: site.is_up("east") == 0)
        source = service.status()["sources"][0]
        assert source["up"] is False
        assert "has not answered" in source["error"]


async def test_a_partition_without_leader_alone_has_unknown_lag(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicated_cluster(tmp_path / "two", brokers=2) as east:
        site.east = east.cluster
        await make(site.east, partitions=2)
        for partition in (0, 1):
            await publish(site.east, b"a", partition=partition)
        async with site.mirroring() as service:
            await until(lambda: is_caught_up(site, service, 0) and is_caught_up(site, service, 1))
            leader = east.leader("clicks", 1)
            assert leader is not None
            assert east.leader("clicks", 0) != leader
            await east.stop(leader)
            await until(lambda: is_unknown(site, service, 1))
            await publish(site.east, b"b")
            await until(lambda: line_of(service)["position"] == 2 and is_caught_up(site, service, 0))
            assert unknown_lags(site) == 1


async def test_a_source_that_refuses_the_mirror_has_unknown_lag(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with caught_up(site) as service:
        request = site.east.request

        async def refuse(broker: Any, message: Any, **settings: Any) -> Any:
            if site.east.view.topics:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "clicks-0")
            return await request(broker, message, **settings)

        monkeypatch.setattr(site.east, "request", refuse)
        await until(lambda: is_unknown(site, service))
        assert "TOPIC_AUTHORIZATION_FAILED" in (reason_of(service) or "")
        assert line_of(service)["state"] in {"halted", "locating"}


@pytest.mark.long
async def test_the_lag_grows_while_the_hub_is_down(site: Site, tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path / "hub-that-dies", brokers=1) as hub:
        site.hub = hub.cluster
        async with caught_up(site) as service:
            await hub.stop(1)
            for count in (1, 2, 3):
                await publish(site.east, b"more")
                await until(partial(is_behind, site, service, count))
            line = line_of(service)
            assert line["lag_seconds"] > 0
            assert line["lag_bytes"] > 0
            await until(lambda: line_of(service)["state"] == "waiting")
            await hub.start(1)
            await until(lambda: is_caught_up(site, service))


@pytest.mark.long
async def test_the_lag_grows_while_the_hub_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with caught_up(site, produce_timeout_ms=60_000) as service:
        with hanging(monkeypatch, site.hub, ProduceRequest):
            await publish(site.east, b"b")
            await until(lambda: line_of(service)["lag"] == 1)
            first = line_of(service)["lag_seconds"]
            await until(lambda: line_of(service)["lag_seconds"] > first + 7)
            await publish(site.east, b"c")
            await until(lambda: line_of(service)["lag"] == 2)


async def test_a_replica_that_is_deleted_while_its_source_is_idle_is_copied_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_ends, "ROUND_S", 0.1)
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until(lambda: is_caught_up(site, service))
        await delete_topics(site.hub, ["clicks"])
        await until(lambda: is_unknown(site, service) or is_behind(site, service, 2))
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until(lambda: is_caught_up(site, service))


async def test_a_replica_that_has_caught_up_has_unknown_lag_while_the_hub_is_down(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_ends, "ROUND_S", 0.1)
    async with replicated_cluster(tmp_path / "hub-that-dies", brokers=1) as hub:
        site.hub = hub.cluster
        async with caught_up(site) as service:
            await hub.stop(1)
            await until(lambda: is_unknown(site, service))
            await hub.start(1)
            await until(lambda: is_caught_up(site, service))


async def test_a_partition_that_is_gone_or_not_yet_located_has_unknown_lag(site: Site) -> None:
    async with caught_up(site) as service:
        await delete_topics(site.east, ["clicks"])
        await until(lambda: line_of(service)["state"] == "gone")
        assert is_unknown(site, service)
        assert "topics.exclude" in line_of(service)["advice"]
    async with open_cluster(NOBODY) as away:
        site.east = away
        async with site.mirroring() as service:
            await until(lambda: line_of(service).get("state") == "locating")
            assert is_unknown(site, service)
            assert unknown_lags(site) == 1
