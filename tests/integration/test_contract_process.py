"""A broker as a user starts it, with a registry and a topic whose data must decode."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.processes import free_port
from tests.support.broker import BrokerProcess, configured_broker
from tests.support.http_answers import as_json, http_server

VISIT = json.dumps({"type": "record", "name": "Visit", "fields": [{"name": "n", "type": "int"}]})
ANSWERS = {
    "/schemas/ids/7": as_json({"schema": VISIT}),
    "/schemas/ids/7/versions": as_json([{"subject": "t-value", "version": 1}]),
}
MAX_MEMORY_MB = 300


@pytest.fixture
def broker(tmp_path: Path, zookeeper: str) -> Iterator[BrokerProcess]:
    with (
        http_server(ANSWERS) as url,
        configured_broker(
            tmp_path,
            zookeeper,
            broker_id=1,
            port=free_port(),
            confluent_schema_registry_url=f"http://127.0.0.1:1,{url}",
        ) as broker,
    ):
        broker.start()
        yield broker


@pytest.mark.long
def test_data_that_do_not_decode_are_refused(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config={"pipeline.value.schema.decode": "true"})])["t"].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    found: list[Any] = []
    for value in (b"\0\0\0\0\7\2", b"\0\0\0\0\7", b"\0\0\0\0\7\2"):
        producer.produce("t", value, on_delivery=lambda error, _: found.append(error and error.code()))
        assert producer.flush(120) == 0
    assert found == [None, KafkaError.INVALID_RECORD, None]
    assert broker.resident_mb < MAX_MEMORY_MB
    assert broker.stop() == 0
