"""A topic that Confluent's registry wrote, as its classes serialize keys and values, and what it reads of ours."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.rules.deletions import delete_subject, delete_version
from pipeline.schema_registry.rules.registry import WritePlan
from pipeline.schema_registry.rules.setting_commands import set_mode
from pipeline.schema_registry.state.events import Ignored, decode_event, encode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import written
from pipeline.schema_registry.state.subject_settings import RegistryMode
from pipeline.testing.memory_journal import MemoryJournal

Log = list[tuple[str, str | None]]

BASE = r"{\"type\":\"record\",\"name\":\"Base\",\"namespace\":\"n\",\"fields\":[]}"
NOOP = '{"keytype":"NOOP","magic":0}'


def key(subject: str, version: int, magic: int = 1) -> str:
    return f'{{"keytype":"SCHEMA","subject":"{subject}","version":{version},"magic":{magic}}}'


def value(subject: str, version: int, schema_id: int, schema: str, more: str = "", deleted: str = "false") -> str:
    return (
        f'{{"subject":"{subject}","version":{version},"id":{schema_id},{more}"schema":"{schema}","deleted":{deleted}}}'
    )


def schema(subject: str, version: int, schema_id: int, text: str, **more: str) -> tuple[str, str | None]:
    return key(subject, version), value(subject, version, schema_id, text, **more)


INT, LONG, STRING = (rf"\"{name}\"" for name in ("int", "long", "string"))
REFERENCES = '"references":[{"name":"n.Base","subject":"base","version":1}],'

TOPIC: Log = [
    (NOOP, None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    schema("s", 1, 1, INT),
    schema("s", 1, 1, INT),  # a duplicate, of a retry
    schema("s", 2, 2, LONG),
    ('{"keytype":"CONFIG","subject":"s","magic":0}', '{"subject":"s","compatibilityLevel":"NONE"}'),
    schema("gone", 1, 3, STRING),
    ('{"keytype":"DELETE_SUBJECT","subject":"gone","magic":0}', '{"subject":"gone","version":1}'),
    (key("gone", 1), None),
    schema("soft", 1, 1, INT),
    schema("soft", 2, 2, LONG),
    ('{"keytype":"DELETE_SUBJECT","subject":"soft","magic":0}', '{"subject":"soft","version":2}'),
    schema("soft", 3, 2, LONG),
    schema("s", 1, 1, INT, deleted="true"),
    (NOOP, None),
    schema("base", 1, 4, BASE, more='"md5":"xnl0s8mMgjwqBv9PRkLh1g==",'),
    schema("user", 1, 5, r"{\"type\":\"array\",\"items\":\"n.Base\"}", more=REFERENCES),
    ('{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}', '{"tenant":"default","context":".c"}'),
    schema(":.c:s", 1, 1, STRING),
    ('{"keytype":"MODE","magic":0}', '{"mode":"READWRITE"}'),
    ('{"keytype":"MODE","subject":"soft","magic":0}', '{"subject":"soft","mode":"READONLY"}'),
    ('{"keytype":"MODE","subject":":.c:","magic":0}', '{"subject":":.c:","mode":"IMPORT"}'),
    schema("json", 1, 6, r"{\"type\":\"object\"}", more='"schemaType":"JSON",'),
    schema("proto", 1, 7, r"syntax = \"proto3\";", more='"schemaType":"PROTOBUF",'),
    schema("tagged", 1, 8, INT, more='"metadata":{"properties":{"owner":"me"}},'),
    (
        key("stamped", 1),
        '{"offset":23,"ts":1700000000000,"subject":"stamped","version":1,"id":9,"schema":"\\"bytes\\"","deleted":false}',
    ),
    (key("old", 1, magic=0), value("old", 1, 1, INT)),
    ('{"keytype":"CLEAR_SUBJECT","subject":"cleared","magic":0}', '{"subject":"cleared"}'),
    ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"FORWARD","normalize":true,"compatibilityGroup":"g"}'),
]


def folded(log: Log) -> RegistryState:
    state = RegistryState(CompatibilityLevel.BACKWARD)
    for record_key, record_value in log:
        event = decode_event(record_key.encode(), None if record_value is None else record_value.encode())
        refusal = state.apply(event)
        assert refusal is None or isinstance(event, Ignored), refusal
    return state


def test_the_state_is_that_of_confluents_registry() -> None:
    state = folded(TOPIC)
    versions = {
        subject: [
            (version.number, version.schema.id, version.deleted) for version in state.versions(subject, deleted=True)
        ]
        for subject in state.subjects(deleted=True)
    }
    assert versions == {
        ":.c:s": [(1, 1, False)],
        "base": [(1, 4, False)],
        "json": [(1, 6, False)],
        "old": [(1, 1, False)],
        "proto": [(1, 7, False)],
        "s": [(1, 1, True), (2, 2, False)],
        "soft": [(1, 1, True), (2, 2, True), (3, 2, False)],
        "stamped": [(1, 9, False)],
        "tagged": [(1, 8, False)],
        "user": [(1, 5, False)],
    }
    assert [state.next_id(), state.next_id(".c")] == [10, 2]
    assert state.contexts() == [".", ".c"]
    assert [user.subject for user in state.referrers("base", 1)] == ["user"]
    settings = state.settings
    assert [settings.level(scope) for scope in (None, "s", "t", ":.c:t")] == ["FORWARD", "NONE", "FORWARD", "BACKWARD"]
    assert settings.config("t").normalize is True
    assert [settings.mode(scope) for scope in (None, "soft", ":.c:t")] == ["READWRITE", "READONLY", "IMPORT"]
    tagged = state.schema(8)
    assert tagged is not None
    assert json.loads(tagged.more) == {"metadata": {"properties": {"owner": "me"}}}


def compacted(log: Log) -> Log:
    last = {record_key: index for index, (record_key, _) in enumerate(log)}
    return [record for index, record in enumerate(log) if last[record[0]] == index and record[1] is not None]


def test_a_topic_after_compaction_gives_the_same_state() -> None:
    whole, rest = folded(TOPIC), folded(compacted(TOPIC))
    for subject in whole.subjects(deleted=True):
        assert whole.versions(subject, deleted=True) == rest.versions(subject, deleted=True)
        assert whole.settings.config(subject) == rest.settings.config(subject)


def test_a_version_is_written_again_as_it_was() -> None:
    """Attributes that this registry has no use for stay in the record of a soft delete."""
    state = folded(TOPIC)
    for record_key, record_value in TOPIC:
        event = decode_event(record_key.encode(), None if record_value is None else record_value.encode())
        subject, number = getattr(event, "subject", None), getattr(event, "version", 0)
        version = state.version(str(subject), number)
        if version is None or record_value is None or not record_key.startswith('{"keytype":"SCHEMA"'):
            continue
        ours_key, ours = encode_event(written(version, deleted=version.deleted))
        assert ours_key == key(version.subject, number).encode()
        kept = json.loads(record_value)
        for attribute in ("md5", "offset", "ts"):
            kept.pop(attribute, None)
        assert json.loads(ours or b"") == kept | {"deleted": version.deleted}
        assert list(json.loads(ours or b"")) == list(kept)


def test_a_reset_of_the_global_level_outlives_compaction_under_both_keys() -> None:
    from pipeline.schema_registry.rules.setting_commands import reset_config

    state = folded(TOPIC)
    records = [encode_event(event) for event in reset_config(state, None).events]
    assert records == [
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', None),
        (b'{"keytype":"CONFIG","magic":0}', None),
    ]


@pytest.mark.parametrize(
    ("record_key", "record_value"),
    [
        ('{"keytype":"CLEAR_SUBJECT","subject":"soft","magic":0}', '{"subject":"soft"}'),
        ('{"keytype":"CLEAR_SUBJECT","subject":null,"magic":0}', "{}"),
        ('{"keytype":"CLEAR_SUBJECT","magic":0}', "{}"),
    ],
)
def test_a_cleared_subject_loses_its_soft_deleted_versions(record_key: str, record_value: str) -> None:
    state = folded([*TOPIC, (record_key, record_value)])
    assert [version.number for version in state.versions("soft", deleted=True)] == [3]


def test_an_empty_value_is_a_tombstone_as_karapace_writes_it() -> None:
    karapace: Log = [
        (key("k", 1), value("k", 1, 1, INT)),
        ('{"keytype":"DELETE_SUBJECT","subject":"k","magic":0}', '{"subject":"k","version":1}'),
        (key("k", 1), ""),
        ('{"keytype":"CONFIG","subject":"k","magic":0}', '{"compatibilityLevel":"NONE"}'),
        ('{"keytype":"CONFIG","subject":"k","magic":0}', ""),
    ]
    state = folded(karapace)
    assert (state.subjects(deleted=True), state.next_id()) == ([], 2)
    assert state.settings.own_config("k") is None


OTHER_KEYS = (
    '{"subject": "%s", "version": 1, "magic": 1, "keytype": "SCHEMA"}',  # Karapace, before it took Confluent's order
    '{"keytype":"SCHEMA","node":1,"seq":7,"subject":"%s","version":1,"magic":1}',  # Redpanda
)


@pytest.mark.parametrize("other_key", OTHER_KEYS)
@pytest.mark.parametrize("at_each_step", [False, True])
def test_what_is_deleted_stays_deleted_after_compaction_however_its_key_was_spelt(
    other_key: str, at_each_step: bool
) -> None:
    subjects = (("a", 1, INT), ("b", 2, LONG), ("c", 3, STRING))
    log: Log = [(other_key % name, value(name, 1, number, text)) for name, number, text in subjects]
    for kind, content in (("CONFIG", '{"compatibilityLevel":"NONE"}'), ("MODE", '{"mode":"READWRITE"}')):
        log.append((f'{{"subject": "a", "magic": 0, "keytype": "{kind}"}}', content))
    state = folded(log)
    plans: list[Callable[[RegistryState], WritePlan[Any]]] = [
        lambda state: delete_subject(state, "a", permanent=False),
        lambda state: delete_subject(state, "a", permanent=True),
        lambda state: delete_version(state, "b", 1, permanent=False),
        lambda state: delete_version(state, "b", 1, permanent=True),
        lambda state: delete_subject(state, "c", permanent=False),
        lambda state: set_mode(state, None, RegistryMode.IMPORT, force=False),
    ]
    for decide in plans:
        for event in decide(state).events:
            record_key, record_value = encode_event(event)
            log.append((record_key.decode(), None if record_value is None else record_value.decode()))
            assert state.apply(event) is None
        log = compacted(log) if at_each_step else log
    again = folded(compacted(log))
    assert (again.subjects(deleted=True), again.next_id()) == ([], 4)
    assert (again.settings.own_config("a"), again.settings.own_mode("a")) == (None, None)


@pytest.mark.parametrize("before", [[], [('{"keytype":"MODE","magic":0}', '{"mode":"READWRITE"}')]])
def test_modes_of_other_registries_that_are_not_known_allow_no_writes(before: list[tuple[str, str | None]]) -> None:
    """With and without the record before, which compaction removes."""
    state = folded([*TOPIC, *before, ('{"keytype":"MODE","magic":0}', '{"mode":"FORWARD"}')])
    assert state.settings.mode() is RegistryMode.READONLY


async def test_a_topic_is_taken_over_and_goes_on(journal: MemoryJournal, open_registry: Callable[..., Any]) -> None:
    for record_key, record_value in TOPIC:
        journal.put(record_key.encode(), None if record_value is None else record_value.encode())
    async with open_registry(journal) as http:
        answers = {
            "/schemas/ids/6": {"schemaType": "JSON", "schema": '{"type":"object"}'},
            "/schemas/ids/7": {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'},
            "/schemas/ids/8": {"metadata": {"properties": {"owner": "me"}}, "schema": '"int"'},
            "/schemas/ids/1?subject=:.c:": {"subject": ":.c:s", "version": 1, "id": 1, "schema": '"string"'},
        }
        for path, wanted in answers.items():
            answer = (await http.get(path)).json()
            answer.pop("guid")
            assert answer == wanted
        array = {
            "schema": '{"type":"array","items":"n.Base"}',
            "references": [{"name": "n.Base", "subject": "base", "version": 1}],
        }
        for path, schema_id in (("/subjects/user/versions", 5), ("/subjects/other/versions", 5)):
            assert (await http.post(path, json=array)).json()["id"] == schema_id
        assert (await http.post("/subjects/new/versions", json={"schema": '"double"'})).json()["id"] == 10
        assert (await http.post("/subjects/tagged/versions", json={"schema": '"int"'})).json()["id"] == 8
        assert (await http.post("/subjects/soft/versions", json={"schema": '"float"'})).json()["error_code"] == 42205
        refused = await http.post("/subjects/json/versions", json={"schema": "{}", "schemaType": "JSON"})
        assert refused.json()["error_code"] == 42201
        assert (await http.delete("/subjects/json")).json() == [1]
        assert (await http.get("/schemas/ids/6")).status_code == 200


@pytest.mark.parametrize("metadata", ['{"properties":{"a":NaN}}', '{"properties":[1e999]}', "[-Infinity]", '"x"'])
async def test_metadata_that_is_no_json_is_answered_as_json(
    journal: MemoryJournal, open_registry: Callable[..., Any], metadata: str
) -> None:
    journal.put(key("odd", 1).encode(), value("odd", 1, 9, STRING, more=f'"metadata":{metadata},').encode())
    async with open_registry(journal) as http:
        for path in ("/schemas/ids/9", "/subjects/odd/versions/1", "/schemas", "/subjects/odd/metadata?key=a&value=b"):
            answer = await http.get(path)
            assert answer.status_code == (404 if "?" in path else 200), path
            json.loads(answer.content, parse_constant=pytest.fail)
