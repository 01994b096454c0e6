from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.groups.model import OffsetAndMetadata
from pipeline.broker.groups.offsets import (
    NO_RETENTION_TIME,
    CommittedPartition,
    Offsets,
    Standing,
    commit_value,
    journal_records,
)
from pipeline.broker.groups.records import OffsetKey, decode_key, decode_offset_value, encode_offset_value
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

A, B, C = (TopicPartition(topic, 0) for topic in ("a", "b", "c"))
D = TopicPartition("a", 1)


def committed(offset: int = 7, at_ms: int = 1000, expires_ms: int | None = None) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=Offset(offset), commit_timestamp_ms=at_ms, expire_timestamp_ms=expires_ms)


def value_of(metadata: str | None, retention_time_ms: int = NO_RETENTION_TIME) -> OffsetAndMetadata:
    part = CommittedPartition(topic_partition=A, offset=Offset(7), leader_epoch=LeaderEpoch(3), metadata=metadata)
    return commit_value(part, retention_time_ms=retention_time_ms, max_metadata_bytes=4, now_ms=1000)


def test_a_commit_keeps_what_the_client_sent_and_the_time() -> None:
    assert value_of("m\0") == OffsetAndMetadata(
        offset=Offset(7), leader_epoch=LeaderEpoch(3), metadata="m\0", commit_timestamp_ms=1000
    )
    assert value_of(None).metadata == ""
    assert value_of("", 50).expire_timestamp_ms == 1050


@pytest.mark.parametrize("metadata", ["12345", "😀😀😀", "1😀😀"])
def test_long_metadata_is_refused_as_java_counts_it(metadata: str) -> None:
    with pytest.raises(KafkaError) as refused:
        value_of(metadata)
    assert refused.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize("metadata", ["1234", "éééé", "😀😀"])
def test_metadata_up_to_the_bound_is_taken(metadata: str) -> None:
    assert value_of(metadata).metadata == metadata


def test_a_change_is_the_same_in_memory_and_in_the_journal() -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed(1), B: committed(2)})
    offsets.apply("g", {A: None, C: committed(3)})
    assert offsets.of_group("g") == {B: committed(2), C: committed(3)}
    (first, gone) = journal_records("g", {C: committed(3), A: None})
    assert decode_key(first[0]) == OffsetKey("g", C)
    assert first[1] is not None
    assert decode_offset_value(first[1]) == committed(3)
    assert (decode_key(gone[0]), gone[1]) == (OffsetKey("g", A), None)


def test_a_group_without_offsets_is_none() -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed()})
    offsets.apply("g", {A: None, B: None})
    assert (offsets.group_ids, offsets.is_empty("g"), offsets.of_group("g")) == ([], True, {})


def test_only_existing_offsets_are_deleted() -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed(), B: committed()})
    offsets.apply("other", {A: committed()})
    assert offsets.deletion("g", [A, C]) == {A: None}
    assert offsets.deletion("nobody", [A]) == {}
    offsets.begin("g", {D: committed()})
    offsets.begin("new", {A: committed()})
    assert offsets.known_ids == ["g", "other", "new"]
    assert offsets.of_topic("g", "a") == {A: None, D: None}
    assert [offsets.of_topic(group_id, "b") for group_id in offsets.known_ids] == [{B: None}, {}, {}]


@pytest.mark.parametrize(
    ("standing", "now_ms", "gone"),
    [
        pytest.param(Standing(), 1099, set(), id="alone, too young"),
        pytest.param(Standing(), 1100, {A, B}, id="alone, old"),
        pytest.param(Standing(empty_since_ms=1050), 1149, set(), id="counts from when the group was empty"),
        pytest.param(Standing(empty_since_ms=1050), 1150, {A, B}, id="empty for long"),
        pytest.param(Standing(empty_since_ms=500), 600, {A, B}, id="a commit after the last member left"),
        pytest.param(Standing(has_members=True), 9999, set(), id="it is not known what members read"),
        pytest.param(Standing(has_members=True, read_topics=frozenset("a")), 9999, {B}, id="what they read stays"),
        pytest.param(Standing(has_members=True, read_topics=frozenset("ab")), 9999, set(), id="they read all"),
        pytest.param(Standing(has_members=True, read_topics=frozenset()), 1100, {A, B}, id="they read nothing"),
    ],
)
def test_offsets_expire_as_kafka_expires_them(standing: Standing, now_ms: int, gone: set[TopicPartition]) -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed(), B: committed()})
    assert set(offsets.expired("g", standing, now_ms=now_ms, retention_ms=100)) == gone


@pytest.mark.parametrize(
    ("retention_time_ms", "expires_ms"),
    [
        (-(2**63), 1000),
        (-1, None),
        (-2, 1000),
        (-1001, 1000),
        (0, 1000),
        (2**63 - 1001, 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_retention_time_ends_within_what_the_journal_can_name(retention_time_ms: int, expires_ms: int | None) -> None:
    kept = value_of("", retention_time_ms)
    assert kept.expire_timestamp_ms == expires_ms
    assert decode_offset_value(encode_offset_value(kept)).expire_timestamp_ms == expires_ms


def test_a_retention_time_of_the_commit_decides() -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed(expires_ms=1010), B: committed(expires_ms=9000)})
    assert set(offsets.expired("g", Standing(), now_ms=1010, retention_ms=100)) == {A}
    assert set(offsets.expired("g", Standing(), now_ms=8999, retention_ms=100)) == {A}


def test_offsets_whose_commit_is_under_way_do_not_expire() -> None:
    offsets = Offsets()
    offsets.apply("g", {A: committed(), B: committed()})
    offsets.begin("g", {A: committed(8)})
    offsets.begin("g", {A: committed(9)})
    offsets.end("g", {A: committed(8)})
    assert set(offsets.expired("g", Standing(), now_ms=9999, retention_ms=100)) == {B}
    offsets.apply("g", {A: None, B: None})
    assert not offsets.is_empty("g")
    offsets.end("g", {A: committed(9)})
    assert offsets.is_empty("g")


names = st.sampled_from([A, B, C])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sets(names, min_size=1), st.none() | st.integers(0, 300)),
        st.tuples(st.just("delete"), st.sets(names), st.none()),
        st.tuples(st.just("pass time"), st.integers(0, 150), st.none()),
        st.tuples(st.just("topic goes"), names, st.none()),
        st.tuples(st.just("members read"), st.none() | st.sets(names), st.none()),
        st.tuples(st.just("members leave"), st.none(), st.none()),
    ),
    max_size=25,
)


@pytest.mark.long
@given(steps)
@settings(max_examples=150)
def test_whatever_happens_the_offsets_are_those_of_the_rules(taken: list[tuple[str, Any, Any]]) -> None:
    """A model keeps for each offset the moment at which it was committed and the one that its client named."""
    offsets, model = Offsets(), dict[TopicPartition, tuple[int, int | None]]()
    standing, now_ms, retention_ms = Standing(), 1000, 100
    for step, what, retention in taken:
        if step == "commit":
            expires_ms = None if retention is None else now_ms + retention
            offsets.apply("g", {name: committed(1, now_ms, expires_ms) for name in what})
            model.update(dict.fromkeys(what, (now_ms, expires_ms)))
        elif step == "delete":
            offsets.apply("g", offsets.deletion("g", what))
            model = {name: kept for name, kept in model.items() if name not in what}
        elif step == "pass time":
            now_ms += what
        elif step == "topic goes":
            offsets.apply("g", offsets.of_topic("g", what.topic))
            model.pop(what, None)
        elif step == "members read":
            topics = None if what is None else frozenset(name.topic for name in what)
            standing = Standing(has_members=True, read_topics=topics)
        else:
            standing = Standing(empty_since_ms=now_ms)
        offsets.apply("g", offsets.expired("g", standing, now_ms=now_ms, retention_ms=retention_ms))
        for name, (since_ms, expires_ms) in list(model.items()):
            if standing.has_members and (standing.read_topics is None or name.topic in standing.read_topics):
                continue
            counted_from = since_ms if standing.empty_since_ms is None else standing.empty_since_ms
            if now_ms >= (counted_from + retention_ms if expires_ms is None else expires_ms):
                del model[name]
        assert set(offsets.of_group("g")) == set(model)
