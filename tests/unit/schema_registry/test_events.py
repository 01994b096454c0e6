import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.state.events import (
    ConfigSet,
    ContextSet,
    IdsReserved,
    Ignored,
    ModeSet,
    SchemaReference,
    SchemaRemoved,
    SchemaWritten,
    SubjectCleared,
    SubjectDeleted,
    decode_event,
    encode_event,
)
from pipeline.schema_registry.state.subject_settings import RegistryMode, SubjectConfig


def as_items(numbers: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(numbers.items())


ids = st.integers(1, (1 << 31) - 1)
names = st.text(min_size=1)
CONFIGS = st.builds(
    SubjectConfig,
    level=st.none() | st.sampled_from(CompatibilityLevel),
    normalize=st.none() | st.booleans(),
    alias=st.none() | names,
    more=st.sampled_from(["", '{"compatibilityGroup": "g"}']),
)
EVENTS = st.one_of(
    st.builds(
        SchemaWritten,
        subject=names,
        version=ids,
        id=st.just(0) | ids,
        text=st.text(),
        schema_type=st.sampled_from(["AVRO", "JSON", "PROTOBUF"]),
        references=st.lists(st.builds(SchemaReference, names, names, ids)).map(tuple),
        more=st.sampled_from(["", '{"md5": "x", "metadata": {"a": [1]}}']),
        deleted=st.booleans(),
    ),
    st.builds(SchemaRemoved, subject=names, version=ids),
    st.builds(SubjectDeleted, subject=names, version=ids),
    st.builds(SubjectCleared, subject=st.none() | names),
    st.builds(ConfigSet, subject=st.none() | names, config=st.none() | CONFIGS),
    st.builds(ConfigSet, subject=st.none(), config=CONFIGS, other_key=st.just(b'{"keytype":"CONFIG","magic":0}')),
    st.builds(ModeSet, subject=st.none() | names, mode=st.none() | st.sampled_from(RegistryMode)),
    st.builds(ContextSet, context=names, exists=st.booleans()),
    st.builds(IdsReserved, highest_id=st.just(0) | ids, of_contexts=st.dictionaries(names, ids).map(as_items)),
)


@given(EVENTS)
def test_encoded_events_are_decoded(event: Any) -> None:
    assert decode_event(*encode_event(event)) == event


@pytest.mark.parametrize(
    ("event", "key", "value"),
    [
        (
            SchemaWritten(subject="s", version=2, id=7, text='"int"'),
            b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
            {"subject": "s", "version": 2, "id": 7, "schema": '"int"', "deleted": False},
        ),
        (
            SubjectDeleted(subject="s", version=2),
            b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
            {"subject": "s", "version": 2},
        ),
        (
            ConfigSet(subject=None, config=SubjectConfig(level=CompatibilityLevel.FULL)),
            b'{"keytype":"CONFIG","subject":null,"magic":0}',
            {"compatibilityLevel": "FULL"},
        ),
    ],
)
def test_the_form_is_confluents(event: Any, key: bytes, value: Any) -> None:
    encoded_key, encoded_value = encode_event(event)
    assert encoded_key == key
    assert json.loads(encoded_value or b"") == value


def test_a_record_of_another_registry_with_attributes_we_do_not_know() -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    value = b'{"subject":"s","version":1,"id":1,"guid":"x","md5":"y","schema":"\\"int\\"","deleted":false,"ts":1}'
    assert decode_event(key, value) == SchemaWritten(subject="s", version=1, id=1, text='"int"')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", b"{}"),
        (b"\xff", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"NOOP","magic":0}', None),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', None),
        (b'{"keytype":"ASSOC","magic":0}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b"null-"),
        (b'{"keytype":"SCHEMA","subject":"s","version":0,"magic":1}', b'{"id":1,"schema":"x"}'),
    ],
)
def test_unreadable_records_are_ignored(key: bytes | None, value: bytes | None) -> None:
    assert isinstance(decode_event(key, value), Ignored)


def test_unknown_modes_and_levels_are_the_strictest_ones() -> None:
    """They hold like any other, so that the record before them counts for no reader, compacted or not."""
    mode = decode_event(b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"FORWARD"}')
    assert mode == ModeSet(subject=None, mode=RegistryMode.READONLY)
    level = decode_event(b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"MAYBE"}')
    assert level == ConfigSet(subject=None, config=SubjectConfig(level=CompatibilityLevel.FULL_TRANSITIVE))


@pytest.mark.parametrize("value", [b"{", b"\xff", b"[]", b"7", b'{"mode":null}', b'{"alias":7}', b"[" * 100_000])
def test_unreadable_settings_are_the_strictest_ones(value: bytes) -> None:
    """As with unknown ones: compaction removes the record before them."""
    mode = decode_event(b'{"keytype":"MODE","subject":"s","magic":0}', value)
    assert mode == ModeSet(subject="s", mode=RegistryMode.READONLY)
    if b"mode" not in value:
        level = decode_event(b'{"keytype":"CONFIG","subject":"s","magic":0}', value)
        assert level == ConfigSet(subject="s", config=SubjectConfig(level=CompatibilityLevel.FULL_TRANSITIVE))


def test_numbers_that_json_does_not_have_are_strings() -> None:
    """Other registries may write them; answers and records of ours are JSON."""
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    value = b'{"id":1,"schema":"x","metadata":{"a":NaN,"b":[-Infinity,1e999,1.5]}}'
    event = decode_event(key, value)
    assert isinstance(event, SchemaWritten)
    assert json.loads(event.more) == {"metadata": {"a": "NaN", "b": ["-Infinity", "1e999", 1.5]}}
    config = decode_event(b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"compatibilityGroup":NaN}')
    assert isinstance(config, ConfigSet)
    assert config.config == SubjectConfig(more='{"compatibilityGroup": "NaN"}')


@given(st.none() | st.binary(), st.none() | st.binary())
def test_decoding_raises_nothing(key: bytes | None, value: bytes | None) -> None:
    decode_event(key, value)
