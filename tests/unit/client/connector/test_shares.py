"""Algorithm 1: properties of the shares of a group."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.connector.connector_znodes import ConsumerRegistration, GroupStream
from pipeline.client.connector.shares import GroupView, owners_by_consumer, owners_by_range, share_of, spread
from pipeline.client.streams.topic_filter import BlackList, WhiteList
from pipeline.model import BrokerId, TopicPartition

TOPICS = ("clicks", "searches", "views")
NAMES = st.text("abcdef-0123456789", min_size=1, max_size=4)
BROKERS = st.integers(0, 5).map(BrokerId)
BROKERS_OF_TOPIC = st.dictionaries(st.integers(0, 40), BROKERS, max_size=30)
CONSUMERS = st.sets(NAMES, min_size=1, max_size=10)
STATIC = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 4), min_size=1).map(
    lambda streams: ConsumerRegistration(streams=streams)
)
FILTERED = st.tuples(st.sampled_from([WhiteList("views|clicks"), BlackList("views")]), st.integers(1, 4)).map(
    lambda found: ConsumerRegistration(streams={found[0].regex: found[1]}, topic_filter=found[0])
)
REGISTRATIONS = STATIC | FILTERED
VIEWS = st.builds(
    GroupView,
    consumers=st.dictionaries(NAMES, REGISTRATIONS, min_size=1, max_size=8),
    topics=st.dictionaries(st.sampled_from(TOPICS), BROKERS_OF_TOPIC),
)


def shuffled(view: GroupView, seed: int) -> GroupView:
    def shuffle(values: dict) -> dict:  # type: ignore[type-arg]
        return dict(Random(seed).sample(list(values.items()), len(values)))

    topics = {topic: shuffle(dict(brokers)) for topic, brokers in view.topics.items()}
    return GroupView(consumers=shuffle(dict(view.consumers)), topics=shuffle(topics))


@given(BROKERS_OF_TOPIC, CONSUMERS)
def test_shares_are_disjoint_complete_and_even(brokers: dict[int, BrokerId], consumers: set[str]) -> None:
    owners = owners_by_consumer(brokers, consumers)
    assert owners.keys() == brokers.keys()
    sizes = Counter(dict.fromkeys(consumers, 0))
    sizes.update(owners.values())
    assert sizes.keys() == consumers
    assert max(sizes.values()) - min(sizes.values()) <= 1
    first = sorted(consumers)[: len(brokers) % len(consumers)]
    assert [name for name in sorted(consumers) if sizes[name] > len(brokers) // len(consumers)] == first


@given(BROKERS_OF_TOPIC.filter(bool), CONSUMERS)
def test_consumers_read_from_few_brokers(brokers: dict[int, BrokerId], consumers: set[str]) -> None:
    owners = owners_by_consumer(brokers, consumers)
    connections = {(owners[partition], brokers[partition]) for partition in brokers}
    readers, read = {name for name, _ in connections}, {broker for _, broker in connections}
    # Each border between two consumers divides one broker's partitions at most: fewer connections cannot be had for
    # even shares of any size.
    assert len(connections) <= len(readers) + len(read) - 1
    places = {name: place for place, name in enumerate(sorted(consumers))}
    spans = {broker: sorted({places[name] for name, other in connections if other == broker}) for broker in read}
    assert all(span == list(range(span[0], span[-1] + 1)) for span in spans.values())


@given(VIEWS, st.integers())
def test_a_view_gives_each_partition_one_reader_in_whatever_order_it_comes(view: GroupView, seed: int) -> None:
    owners: dict[TopicPartition, str] = {}
    for consumer in view.consumers:
        share = share_of(view, consumer, {})
        assert share == share_of(shuffled(view, seed), consumer, {})
        assert not share.keys() & owners.keys()
        owners |= dict.fromkeys(share, consumer)
        for topic_partition, number in share.items():
            assert 0 <= number < view.consumers[consumer].streams_of(topic_partition.topic)
    read = {topic for topic in view.topics for other in view.consumers.values() if other.streams_of(topic)}
    assert owners.keys() == {TopicPartition(topic, index) for topic in read for index in view.topics[topic]}


@given(
    st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 20)).map(lambda found: TopicPartition(*found))),
    st.integers(1, 6),
    st.dictionaries(st.tuples(st.sampled_from(TOPICS), st.integers(0, 20)), st.integers(-1, 8)),
)
def test_streams_of_a_consumer_are_even_and_keep_what_they_have(
    partitions: set[TopicPartition], streams: int, held: dict[tuple[str, int], int]
) -> None:
    before = {TopicPartition(*found): number for found, number in held.items()}
    shared = spread(partitions, streams, before)
    assert shared.keys() == partitions
    sizes = [list(shared.values()).count(number) for number in range(streams)]
    assert max(sizes) - min(sizes) <= 1
    assert spread(partitions, streams, shared) == shared
    # As many stay as fit: no stream that lost one has room for one.
    kept = [sum(before.get(found) == number for found in partitions) for number in range(streams)]
    stayed = [sum(before.get(found) == number == shared[found] for found in partitions) for number in range(streams)]
    assert all(stay == min(had, size) for stay, had, size in zip(stayed, kept, sizes, strict=True))


@given(BROKERS_OF_TOPIC, st.dictionaries(NAMES, st.integers(1, 11), min_size=1, max_size=5))
def test_beside_kafkas_consumers_all_share_as_kafka_does(brokers: dict[int, BrokerId], streams: dict[str, int]) -> None:
    ours = {name: ConsumerRegistration(streams={"views": count}) for name, count in streams.items()}
    foreign = ConsumerRegistration(streams={"views": 12}, shares_by_broker=False)
    view = GroupView(consumers={**ours, "kafka": foreign}, topics={"views": brokers})
    # Kafka's RangeAssignor: for each thread id, by text, a start and a number of partitions.
    threads = sorted(
        f"{name}-{number}" for name, each in view.consumers.items() for number in range(each.streams["views"])
    )
    numbers = sorted(brokers)
    per_thread, extra = divmod(len(numbers), len(threads))
    expected = {}
    for place, thread in enumerate(threads):
        start = per_thread * place + min(place, extra)
        for number in numbers[start : start + per_thread + (0 if place + 1 > extra else 1)]:
            expected[TopicPartition("views", number)] = thread
    found = {
        topic_partition: str(GroupStream(name, number))
        for name in view.consumers
        for topic_partition, number in share_of(view, name, {}).items()
    }
    assert found == expected


def test_owners_by_range_sort_streams_as_texts() -> None:
    streams = [GroupStream("c", number) for number in range(11)]
    assert [stream.number for stream in owners_by_range(range(11), streams).values()] == [0, 1, 10, *range(2, 10)]
