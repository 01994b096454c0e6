"""Clusters are asked beside each other, each with a deadline; what they said last holds until they answer again."""

from collections.abc import Awaitable, Callable, Collection

import trio
from trio.testing import MockClock

from pipeline.audit.expectations.building import ClusterFacts, MirrorFacts, SelectedReplicas
from pipeline.audit.expectations.reader import ExpectationsReader
from pipeline.errors import NetworkError

CLICKS_2 = ClusterFacts(cluster_id="E", partitions={"clicks": 2})


class Party:
    """Answers, fails or hangs, as `mood` says."""

    def __init__(self, facts: ClusterFacts) -> None:
        self.facts = facts
        self.mood = "answers"
        self.asked = 0

    async def __call__(self) -> ClusterFacts:
        self.asked += 1
        if self.mood == "hangs":
            await trio.sleep_forever()
        if self.mood == "fails":
            raise NetworkError("refused")
        if self.mood == "fails twice at once":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail)
                nursery.start_soon(self._fail)
        return self.facts

    async def _fail(self) -> None:
        raise NetworkError("refused")


async def mirrors() -> MirrorFacts:
    return MirrorFacts(has_selection=True)


async def select(cluster: str, topics: Collection[str]) -> SelectedReplicas:
    return SelectedReplicas(replicas={topic: [f"{cluster}.{topic}"] for topic in topics})


def reader_of(
    east: Party, west: Party, hub: Party, read_mirrors: Callable[[], Awaitable[MirrorFacts]] = mirrors
) -> ExpectationsReader:
    return ExpectationsReader(
        {"east": east, "west": west},
        ("hub", hub),
        read_mirrors,
        select,
        clock=lambda: int(trio.current_time() * 1000),
        max_age_s=10,
        timeout_s=3,
    )


async def test_expectations_are_made_once_for_each_reading(autojump_clock: MockClock) -> None:
    east, west, hub = (Party(CLICKS_2) for _ in range(3))
    reader = reader_of(east, west, hub)
    first = await reader.read()
    assert await reader.read() is first
    await trio.sleep(11)
    again = await reader.read()
    assert again is not first
    assert east.asked == 2


async def test_a_cluster_that_is_away_delays_no_other_one(autojump_clock: MockClock) -> None:
    east, west, hub = (Party(CLICKS_2) for _ in range(3))
    reader = reader_of(east, west, hub)
    first = await reader.read()
    assert first.unknown == [] and len(first.mirrored) == 2
    for mood in ("hangs", "fails", "fails twice at once"):
        west.mood = mood
        east.facts = ClusterFacts(cluster_id="E", partitions={"clicks": 3})
        await trio.sleep(11)
        began = trio.current_time()
        expected = await reader.read()
        assert trio.current_time() - began <= 3
        assert expected.partitions["east", "clicks"] == 3 and expected.partitions["west", "clicks"] == 2
        assert [(witness.cluster, witness.since_ms) for witness in expected.unknown] == [
            ("west", first.read_to_ms["west"])
        ]
        assert expected.read_to_ms["east"] > expected.read_to_ms["west"]
        assert ("no answer within 3 s" if mood == "hangs" else "refused") in str(expected.unknown[0])
    west.mood = "answers"
    await trio.sleep(11)
    assert (await reader.read()).unknown == []


async def test_clusters_are_asked_again_only_after_a_while(autojump_clock: MockClock) -> None:
    parties = [Party(CLICKS_2) for _ in range(3)]
    east, west, hub = parties
    reader = reader_of(east, west, hub)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(reader.read)
    assert [party.asked for party in parties] == [1, 1, 1]
    await trio.sleep(11)
    await reader.read()
    assert [party.asked for party in parties] == [2, 2, 2]


async def test_very_many_partitions_are_read_less_often(autojump_clock: MockClock) -> None:
    many = Party(ClusterFacts(cluster_id="E", partitions={f"t{number}": 100 for number in range(1_000)}))
    reader = reader_of(many, Party(CLICKS_2), Party(CLICKS_2))
    await reader.read()
    assert 60 <= reader.age_s < 61
    await trio.sleep(59)
    await reader.read()
    assert many.asked == 1
    await trio.sleep(2)
    await reader.read()
    assert many.asked == 2


async def test_mirrors_that_cannot_be_read_leave_their_last_word_and_a_witness(autojump_clock: MockClock) -> None:
    is_away = False

    async def read_mirrors() -> MirrorFacts:
        if is_away:
            await trio.sleep_forever()
        return MirrorFacts(has_selection=True)

    reader = reader_of(Party(CLICKS_2), Party(CLICKS_2), Party(CLICKS_2), read_mirrors)
    first = await reader.read()
    is_away = True
    await trio.sleep(11)
    expected = await reader.read()
    assert expected.mirrored == first.mirrored != []
    assert [(witness.name, witness.since_ms) for witness in expected.unknown] == [("mirror", 0)]
    assert expected.read_to_ms["hub"] == 0


async def test_a_cancelled_read_leaves_the_reader_usable(autojump_clock: MockClock) -> None:
    east, west, hub = (Party(CLICKS_2) for _ in range(3))
    reader = reader_of(east, west, hub)
    west.mood = "hangs"
    with trio.move_on_after(1):
        await reader.read()
    west.mood = "answers"
    assert (await reader.read()).unknown == []


async def test_a_topic_that_a_cluster_has_no_more_is_deleted_since_it_was_last_seen(autojump_clock: MockClock) -> None:
    east, west, hub = (Party(CLICKS_2) for _ in range(3))
    reader = reader_of(east, west, hub)
    seen_ms = (await reader.read()).read_to_ms["east"]
    for facts, deleted in (
        (ClusterFacts(cluster_id="E", partitions={}), {("east", "clicks"): seen_ms}),
        (ClusterFacts(cluster_id="E", partitions={"views": 1}), {("east", "clicks"): seen_ms}),
        (ClusterFacts(cluster_id="E", partitions={}, unreadable={"clicks": "no leader"}), {}),
    ):
        east.facts = facts
        await trio.sleep(11)
        found = (await reader.read()).deleted
        assert {key: found[key] for key in found if key[1] == "clicks"} == deleted
