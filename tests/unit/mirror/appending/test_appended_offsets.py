"""A mirror that appends: what it copies when it dies, when others write, and when the destination loses something."""

from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.errors import ConfigurationError
from pipeline.mirror.appending import appended_offsets
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.journals.offset_map import OFFSET_MAP_TOPIC
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from tests.support.mirror_deaths import Death
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    make,
    publish,
    read,
    reason_of,
    settings_of,
    until,
    until_said,
)

VALUES = [b"%d" % number for number in range(6)]


def lag(service: MirrorService, topic: str = "clicks") -> Any:
    lines = [line for line in service.status()["sources"][0]["partitions"] if line["topic"] == topic]
    return lines[0]["lag"] if lines else None


async def values_of(site: Site, topic: str = "clicks") -> list[bytes | None]:
    return [value for _, value in await read(site.hub, TopicPartition(topic, 0))]


async def test_a_mirror_that_dies_at_any_change_of_the_destination_doubles_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 40):
        topic = f"clicks-{number}"
        await make(site.east, topic)
        await publish(site.east, *VALUES[:3], topic=topic)
        death = Death(site.hub.request, number)
        with monkeypatch.context() as patched:
            patched.setattr(site.hub, "request", death.request)
            async with site.mirroring(topics=[topic], destination_mode="append") as service:
                await until(lambda: death.came or lag(service, topic) == 0)  # noqa: B023
        await publish(site.east, *VALUES[3:], topic=topic)
        async with site.mirroring(topics=[topic], destination_mode="append") as service:
            await until(lambda: lag(service, topic) == 0)  # noqa: B023
        assert await values_of(site, topic) == VALUES
        if not death.came:
            assert number > 5
            return
    pytest.fail("the mirror had not copied everything after so many changes")


async def test_two_mirrors_and_other_producers_do_no_harm(site: Site) -> None:
    await make(site.east)
    async with (
        site.mirroring(destination_mode="append") as first,
        site.mirroring(destination_mode="append") as second,
    ):
        for number in range(6):
            await publish(site.east, *(b"%d.%d" % (number, part) for part in range(4)))
            await until(lambda: lag(first) == lag(second) == 0)
            await publish(site.hub, b"other")
    expected = [b"%d.%d" % (number, part) for number in range(6) for part in range(4)]
    values = await values_of(site)
    assert [value for value in values if value != b"other"] == expected
    assert values.count(b"other") == 6
    async with site.mirroring(destination_mode="append") as service:
        await publish(site.east, b"last")
        await until(lambda: lag(service) == 0)
    assert (await values_of(site))[-1] == b"last"


async def test_a_place_that_was_confirmed_long_ago_is_located_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appended_offsets, "CONFIRMED_FOR_S", 0.3)
    await make(site.east)
    async with site.mirroring(destination_mode="append") as service:
        for value in VALUES[:3]:
            await publish(site.east, value)
            await until(lambda: lag(service) == 0)
            await trio.sleep(0.4)
    assert await values_of(site) == VALUES[:3]


async def test_a_lost_offset_map_stops_the_partition(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:2])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
    await delete_topics(site.hub, [OFFSET_MAP_TOPIC])
    with trio.fail_after(DEADLINE_S):
        while OFFSET_MAP_TOPIC in (await site.hub.fetch_all_topics()).topics:
            await trio.sleep(0.02)
    await publish(site.east, VALUES[2])
    async with site.mirroring(destination_mode="append") as service:
        await until_said(service, "the offset map has no entry of it")
        (line,) = service.status()["sources"][0]["partitions"]
        assert (line["state"], line["lag"]) == ("halted", None)
    assert await values_of(site) == VALUES[:2]


async def test_a_replica_that_was_deleted_is_copied_again(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:3])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        await delete_topics(site.hub, ["clicks"])
        with trio.fail_after(DEADLINE_S):
            while CLICKS.topic in (await site.hub.fetch_all_topics()).topics:
                await trio.sleep(0.02)
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        await publish(site.east, *VALUES[3:])
        await until(lambda: lag(service) == 0)
    assert await values_of(site) == VALUES


async def test_a_topic_with_records_of_others_is_left_alone(site: Site) -> None:
    await make(site.east)
    await make(site.hub)
    await publish(site.hub, b"other")
    await publish(site.east, VALUES[0])
    async with site.mirroring(destination_mode="append") as service:
        await until_said(service, "clicks-0 has records, and the offset map has no entry of it")
    assert await values_of(site) == [b"other"]


async def test_a_replica_takes_settings_but_not_the_type_of_times(site: Site) -> None:
    await make(site.east, retention_ms="-1", message_timestamp_type="LogAppendTime")
    await publish(site.east, VALUES[0])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        assert reason_of(service) is None
    assert await settings_of(site.hub) == {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def test_offsets_of_groups_cannot_be_copied() -> None:
    with pytest.raises(ConfigurationError, match=r"needs destination\.mode"):
        MirrorConfig.from_settings(
            {
                "destination.bootstrap.servers": "hub:1",
                "destination.mode": "append",
                "sources": [{"name": "east", "bootstrap.servers": "east:1"}],
                "topics": ["clicks"],
                "http.listen": "127.0.0.1:0",
                "group.offsets.enabled": True,
            }
        )
