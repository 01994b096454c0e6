import pytest

from pipeline.broker.quotas.entities import alter, check_filter, entity_data, matches, read_entity
from pipeline.coordination.quota_znodes import DEFAULT, QuotaEntity
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_client_quotas import OpData
from pipeline.protocol.messages.describe_client_quotas import ComponentData, EntityData

ENTITIES = [
    QuotaEntity(user="alice"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(client_id="app"),
    QuotaEntity(client_id=DEFAULT),
    QuotaEntity(user="alice", client_id="app"),
    QuotaEntity(user=DEFAULT, client_id=DEFAULT),
]
EXACT, BY_DEFAULT, ANY = 0, 1, 2


def component(entity_type: str, match_type: int, match: str | None = None) -> ComponentData:
    return ComponentData(entity_type=entity_type, match_type=match_type, match=match)


@pytest.mark.parametrize("entity", ENTITIES)
def test_an_entity_is_told_as_it_was_named(entity: QuotaEntity) -> None:
    assert read_entity(entity_data(entity)) == entity


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], ErrorCode.INVALID_REQUEST),
        ([("user", "")], ErrorCode.INVALID_REQUEST),
        ([("user", "a"), ("user", "b")], ErrorCode.INVALID_REQUEST),
        ([("ip", "127.0.0.1")], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_invalid_entities_are_refused(parts: list[tuple[str, str | None]], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        read_entity([EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in parts])
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3, 4, 5]),
        ([], True, []),
        ([component("user", ANY)], False, [0, 1, 4, 5]),
        ([component("user", ANY)], True, [0, 1]),
        ([component("user", EXACT, "alice")], False, [0, 4]),
        ([component("user", EXACT, "alice")], True, [0]),
        ([component("client-id", BY_DEFAULT)], False, [3, 5]),
        ([component("user", ANY), component("client-id", ANY)], True, [4, 5]),
        ([component("user", EXACT, "<default>")], False, []),
    ],
)
def test_filters_match_the_entities_that_kafka_describes(
    components: list[ComponentData], strict: bool, found: list[int]
) -> None:
    check_filter(components)
    assert [index for index, entity in enumerate(ENTITIES) if matches(entity, components, strict=strict)] == found


@pytest.mark.parametrize(
    "components",
    [[component("user", 3)], [component("user", EXACT)], [component("user", ANY), component("user", ANY)]],
)
def test_filters_that_cannot_be(components: list[ComponentData]) -> None:
    with pytest.raises(KafkaError):
        check_filter(components)


def test_operations_keep_what_is_no_quota() -> None:
    settings = {"SCRAM-SHA-256": "salt", "producer_byte_rate": "1"}
    operations = [OpData(key="producer_byte_rate", remove=True), OpData(key="consumer_byte_rate", value=2048.0)]
    assert alter(settings, operations) == {"SCRAM-SHA-256": "salt", "consumer_byte_rate": "2048"}


@pytest.mark.parametrize(
    "operation",
    [
        OpData(key="request_percentage", value=1.0),
        OpData(key="producer_byte_rate", value=0.0),
        OpData(key="producer_byte_rate", value=float("nan")),
        OpData(key="producer_byte_rate", value=float("inf")),
        OpData(key="producer_byte_rate", value=1.5),
    ],
)
def test_operations_that_are_refused(operation: OpData) -> None:
    with pytest.raises(KafkaError):
        alter({}, [operation])
