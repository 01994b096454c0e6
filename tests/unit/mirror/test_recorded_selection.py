"""A running mirror records what it selects in the hub: before it copies, and before new settings are in force."""

from random import Random
from typing import Any

import pytest

from pipeline.client.admin.topics import delete_topics
from pipeline.errors import NetworkError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.hub import Hub
from pipeline.mirror.journals.selection_journal import SelectionJournal
from pipeline.mirror.journals.selections import SELECTIONS_TOPIC, MirrorSelection
from pipeline.mirror.service import MirrorService
from pipeline.mirror.topics.flows import selection_in
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, Site, make, mirror_settings, publish, read, until_copied

NAME = "mirror@127.0.0.1:0"


async def recorded(site: Site) -> MirrorSelection | None:
    journal = SelectionJournal(site.hub, clock=clock, rng=Random(1))
    await journal.read_on()
    return journal.selections.of(NAME)


async def apply(service: MirrorService, new: dict[str, Any]) -> None:
    await service.settings.apply(new, service.status()["settings"]["version"])


async def test_the_selection_is_in_the_hub_before_the_first_record_and_written_once(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    for _ in range(3):
        async with site.mirroring():
            await until_copied(site.hub, CLICKS, b"a")
    config = MirrorConfig.from_settings(mirror_settings("east", "west"))
    assert await recorded(site) == selection_in(config)
    journal = SelectionJournal(site.hub, clock=clock, rng=Random(1))
    await journal.read_on()
    assert len(await journal_records(site)) == 1


async def journal_records(site: Site) -> list[tuple[int, bytes | None]]:
    from pipeline.model import TopicPartition

    return await read(site.hub, TopicPartition(SELECTIONS_TOPIC, 0))


async def test_new_settings_are_recorded_before_they_are_in_force(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        new = mirror_settings("east", "west", topics=["clicks.*", "views"])
        with monkeypatch.context() as patched:

            async def fail(*_: Any) -> None:
                raise NetworkError("the hub is away")

            patched.setattr(Hub, "record_selection", fail)
            before = service.status()["settings"]["version"]
            with pytest.raises(NetworkError):
                await apply(service, new)
            assert service.status()["settings"]["version"] == before
        await apply(service, new)
        assert await recorded(site) == selection_in(MirrorConfig.from_settings(new))


async def test_a_deleted_journal_is_written_again_by_the_next_start(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await delete_topics(site.hub, [SELECTIONS_TOPIC])
    async with site.mirroring():
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        assert await recorded(site) is not None
