"""What mirrors select, as records of a compacted topic: whole, or as before."""

import hashlib
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.journals.record_document import MAX_RECORD_BYTES
from pipeline.mirror.journals.selections import (
    MAX_PORTIONS,
    MirrorSelection,
    SelectedFlow,
    SelectionRecordError,
    Selections,
)
from pipeline.mirror.topics.flows import flows_of, flows_selected, mirror_name_of, selection_in
from tests.support.mirrors import mirror_settings

Records = Sequence[tuple[bytes, bytes | None]]


def selection(*topics: str, flows: int = 1, name: str = "f") -> MirrorSelection:
    return MirrorSelection(
        mode="exact",
        sources=("east",),
        flows=tuple(SelectedFlow(name=f"{name}{number}", source="east", topics=topics) for number in range(flows)),
    )


def fold(*records: tuple[bytes, bytes | None], of: Selections | None = None) -> Selections:
    state = of or Selections()
    for key, value in records:
        state.apply(key, value)
    return state


def compacted(records: Records) -> Records:
    last = {key: index for index, (key, _) in enumerate(records)}
    return [record for index, record in enumerate(records) if last[record[0]] == index]


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=40),
    st.integers(1, 300),
)
def test_a_selection_is_read_as_it_was_written(patterns: list[str], flows: int) -> None:
    written = selection(*patterns, flows=flows)
    records = written.encode("mirror@127.0.0.1:8090", 5)
    assert all(len(value) <= MAX_RECORD_BYTES for _, value in records)
    state = fold(*records)
    assert state.of("mirror@127.0.0.1:8090") == written
    assert state.troubles() == {} and state.times_ms() == {"mirror@127.0.0.1:8090": 5}


def test_ten_thousand_flows_fit() -> None:
    written = selection(r"clicks\..*", "views-[0-9]+", flows=10_000, name="a-flow-with-a-name-of-some-length-")
    records = written.encode("m", 1)
    assert 1 < len(records) < MAX_PORTIONS and all(len(value) <= MAX_RECORD_BYTES for _, value in records)
    assert fold(*records).of("m") == written


def test_a_selection_that_is_too_large_is_a_trouble_and_not_an_old_selection() -> None:
    large = selection("x" * 5_000_000)
    state = fold(*selection("a").encode("m", 1), *large.encode("m", 2))
    assert state.of("m") is None and "too large" in state.troubles()["m"]


def test_a_selection_counts_once_it_is_whole_and_the_one_before_until_then() -> None:
    first, second = selection("a", flows=500), selection("b", flows=500)
    state = fold(*first.encode("m", 1))
    records = second.encode("m", 2)
    assert len(records) > 3
    for record in records[:-1]:
        fold(record, of=state)
        assert state.known()["m"] == first and state.of("m") is None and "not complete" in state.troubles()["m"]
    fold(records[-1], of=state)
    assert state.of("m") == second and state.troubles() == {}


@pytest.mark.parametrize("sizes", [(500, 1), (1, 500), (500, 499)])
def test_a_replacement_leaves_no_portion_of_the_old_selection(sizes: tuple[int, int]) -> None:
    first, second = (selection("a", flows=size) for size in sizes)
    written: list[tuple[bytes, bytes | None]] = [*first.encode("m", 1)]
    written += fold(*written).replacement_of("m", second, 2)
    for records in (written, compacted(written)):
        assert fold(*records).of("m") == second
    written += fold(*written).removal_of("m")
    for records in (written, compacted(written), []):
        state = fold(*records)
        assert state.known() == state.troubles() == {} and not state.removal_of("m")


def test_a_removal_that_came_half_way_is_a_trouble_and_can_be_repeated() -> None:
    state = fold(*selection("a", flows=500).encode("m", 1))
    records = state.removal_of("m")
    assert len(records) > 2
    fold(records[0], of=state)
    assert state.of("m") is None and "not complete" in state.troubles()["m"]
    assert state.removal_of("m") == records[1:]


def test_selections_of_two_mirrors_do_not_replace_each_other() -> None:
    state = fold(*selection("a").encode("one", 1), *selection("b").encode("two", 1))
    assert state.known() == {"one": selection("a"), "two": selection("b")}
    fold(*state.removal_of("one"), of=state)
    assert state.known() == {"two": selection("b")}


GOOD_KEY, GOOD_VALUE = selection("a").encode("m", 1)[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, GOOD_VALUE),
        (b"m", GOOD_VALUE),
        (b"/0", GOOD_VALUE),
        (b"m/x", GOOD_VALUE),
        (b"m/1", GOOD_VALUE),
        (b"m/99999", GOOD_VALUE),
        ("m/²".encode(), GOOD_VALUE),
        (b"\xff/0", GOOD_VALUE),
        (b"m\n/0", GOOD_VALUE),
        (GOOD_KEY, b"stray"),
        (GOOD_KEY, b"[]"),
        (GOOD_KEY, b'{"version":2}'),
        (GOOD_KEY, b"[" * 5000),
        (GOOD_KEY, GOOD_VALUE.replace(b'"portions":1', b'"portions":1000000')),
        (GOOD_KEY, GOOD_VALUE.replace(b'"text"', b'"txt"')),
        (GOOD_KEY, b" " * 20_000),
    ],
)
def test_garbage_changes_nothing(key: bytes | None, value: bytes | None) -> None:
    state = fold((GOOD_KEY, GOOD_VALUE))
    with pytest.raises(SelectionRecordError):
        state.apply(key, value)
    assert state.of("m") == selection("a") and state.troubles() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nothing",
        '{"mode":"exact"}',
        '{"mode":"exact","sources":["a"],"flows":[1]}',
        '{"mode":"exact","sources":["a"],"flows":[{"name":"f","source":"a","topics":"x"}]}',
        "[" * 5000,
    ],
)
def test_a_whole_selection_that_cannot_be_read_is_a_trouble(text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    document = {"version": 1, "time_ms": 1, "digest": digest, "portions": 1, "text": text}
    state = fold((GOOD_KEY, GOOD_VALUE), (GOOD_KEY, json.dumps(document).encode()))
    assert state.of("m") is None and "cannot be read" in state.troubles()["m"]


def test_settings_and_their_record_select_alike() -> None:
    flows = [
        {"name": "one", "source": "east", "topics": ["clicks.*"], "topics.exclude": ["clicks-raw"]},
        {"name": "two", "source": "west", "topics": [".*"], "replica.topic": "{source}.{topic}"},
    ]
    for settings in (mirror_settings("east", "west", flows=flows), mirror_settings("east", "west")):
        config = MirrorConfig.from_settings(settings)
        (key, _), *_ = records = selection_in(config).encode(mirror_name_of(config), 1)
        assert key == b"mirror@127.0.0.1:0/0"
        recorded = fold(*records).of(mirror_name_of(config))
        assert recorded is not None
        read, given_flows = flows_selected(recorded), flows_of(config)
        for source in ("east", "west"):
            for topic in ("clicks", "clicks-raw", "views", "_audit"):
                names = [
                    None if flow is None else flow.replica_of(topic)
                    for flow in (each[source].flow_of(topic) for each in (read, given_flows))
                ]
                assert names[0] == names[1]


def test_processes_of_a_group_have_one_name() -> None:
    config = MirrorConfig.from_settings(
        {**mirror_settings("east"), "zookeeper.connect": "z:1", "mirror.group": "hub-mirrors"}
    )
    assert mirror_name_of(config) == "hub-mirrors"
