import itertools

import pytest

from pipeline.broker.quotas.table import MAX_QUOTA, MIN_QUOTA, Quota, QuotaKind, QuotaTable, parse_quota
from pipeline.coordination.quota_znodes import DEFAULT, QuotaEntity, decode_name, encode_name
from pipeline.coordination.znodes import decode_config, encode_config

PRECEDENCE = [
    ("/config/users/alice/clients/app", QuotaEntity(user="alice", client_id="app"), ("alice", "app")),
    ("/config/users/alice/clients/<default>", QuotaEntity(user="alice", client_id=DEFAULT), ("alice", "app")),
    ("/config/users/alice", QuotaEntity(user="alice"), ("alice", None)),
    ("/config/users/<default>/clients/app", QuotaEntity(user=DEFAULT, client_id="app"), ("alice", "app")),
    ("/config/users/<default>/clients/<default>", QuotaEntity(user=DEFAULT, client_id=DEFAULT), ("alice", "app")),
    ("/config/users/<default>", QuotaEntity(user=DEFAULT), ("alice", None)),
    ("/config/clients/app", QuotaEntity(client_id="app"), (None, "app")),
    ("/config/clients/<default>", QuotaEntity(client_id=DEFAULT), (None, "app")),
]


@pytest.mark.parametrize(("path", "entity", "_sharer"), PRECEDENCE, ids=[path for path, *_ in PRECEDENCE])
def test_znodes_are_kafkas(path: str, entity: QuotaEntity, _sharer: object) -> None:
    assert entity.path == path
    data = encode_config({"producer_byte_rate": "1024"})
    assert data == b'{"version":1,"config":{"producer_byte_rate":"1024"}}'
    assert decode_config(entity.path, data) == {"producer_byte_rate": "1024"}


def test_names_are_written_as_kafkas_sanitizer_does() -> None:
    assert encode_name("CN=a b,O=*~é/x") == "CN%3Da%20b%2CO%3D%2A%7E%C3%A9%2Fx"
    assert decode_name("CN%3Da%20b%2CO%3D%2A%7E%C3%A9%2Fx") == "CN=a b,O=*~é/x"
    assert decode_name("<default>") is DEFAULT
    assert [encode_name("."), encode_name(".."), encode_name("a.b")] == ["%2E", "%2E%2E", "a.b"]
    assert [decode_name("%2E"), decode_name("%2E%2E")] == [".", ".."]
    with pytest.raises(ValueError, match="must not be empty"):
        encode_name("")


@pytest.mark.parametrize("present", [set(chosen) for n in (1, 2, 3) for chosen in itertools.combinations(range(8), n)])
def test_the_most_specific_counts(present: set[int]) -> None:
    table = QuotaTable({QuotaKind.PRODUCE: 7.0})
    for index in present:
        table.set(PRECEDENCE[index][1], {QuotaKind.PRODUCE: 100.0 + index})
    first = min(present)
    assert table.find(QuotaKind.PRODUCE, "alice", "app") == Quota(100.0 + first, PRECEDENCE[first][2])
    assert table.find(QuotaKind.FETCH, "alice", "app") is None


def test_the_brokers_default_is_last_and_by_client_id() -> None:
    table = QuotaTable({QuotaKind.PRODUCE: 7.0})
    assert table.find(QuotaKind.PRODUCE, "alice", "app") == Quota(7.0, (None, "app"))
    assert not table.is_empty
    assert QuotaTable({QuotaKind.PRODUCE: None}).is_empty


def test_a_quota_of_one_kind_leaves_the_other_to_the_next_in_line() -> None:
    table = QuotaTable({})
    table.set(QuotaEntity(user="alice"), {QuotaKind.PRODUCE: 1.0})
    table.set(QuotaEntity(client_id="app"), {QuotaKind.FETCH: 2.0})
    assert table.find(QuotaKind.FETCH, "alice", "app") == Quota(2.0, (None, "app"))
    table.set(QuotaEntity(user="alice"), {})
    assert table.find(QuotaKind.PRODUCE, "alice", "app") is None


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast"])
def test_invalid_quota_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_quota(text)


@pytest.mark.parametrize(
    ("text", "counts_as"), [("5e-324", MIN_QUOTA), ("0.5", MIN_QUOTA), ("2.5", 2.5), ("1e308", MAX_QUOTA)]
)
def test_a_quota_beyond_the_bounds_counts_as_the_bound(text: str, counts_as: float) -> None:
    assert parse_quota(text) == counts_as
