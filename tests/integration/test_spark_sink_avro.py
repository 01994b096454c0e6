"""Columns of Spark as Avro datums of the registry, read back by a foreign client."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext

from pipeline.testing.local_cluster import LocalCluster
from tests.integration.test_spark_sink import create_topics, read_all
from tests.support.registry_thread import registry_in_thread
from tests.support.secured_http import PASSWORDS, TOKEN, http_files

pytestmark = pytest.mark.long

with warnings.catch_warnings(record=True):  # authlib, which it needs, warns of its own future
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "referrer", "type": ["null", "string"], "default": None},
        {"name": "count", "type": "long", "default": 1},
    ],
}
SELECTED = "named_struct('page', '/p' || id, 'at', timestamp_millis(id * 1000)) AS value"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(registry=True) as local:
        create_topics(local.bootstrap, "visits", "derived", "unregistered")
        schema = {"schema": json.dumps(VISIT)}
        httpx.post(f"{local.registry}/subjects/visits-value/versions", json=schema, timeout=60).raise_for_status()
        yield local


def write(spark: Any, local: LocalCluster, columns: str, topic: str, **more: str) -> None:
    rows = spark.sql(f"SELECT {columns} FROM range(100)").write.format("pipeline").mode("append")
    rows = rows.option("kafka.bootstrap.servers", local.bootstrap).option("topic", topic)
    rows.option("valueFormat", "avro").option("schema.registry.url", local.registry).options(**more).save()


def read(local: LocalCluster, topic: str) -> list[Any]:
    with SchemaRegistryClient({"url": local.registry}) as registry:
        decode = AvroDeserializer(registry)
        context = SerializationContext(topic, MessageField.VALUE)
        return [decode(message.value(), context) for message in read_all(local.bootstrap, topic)]


def test_columns_are_encoded_by_the_latest_schema_of_the_subject(spark: Any, local: LocalCluster) -> None:
    write(spark, local, SELECTED, "visits")
    found = sorted((row["at"].timestamp(), row["page"], row["referrer"], row["count"]) for row in read(local, "visits"))
    assert found == [(float(number), f"/p{number}", None, 1) for number in range(100)]


def test_a_schema_of_the_columns_is_registered_if_wanted(spark: Any, local: LocalCluster) -> None:
    with pytest.raises(Exception, match=r"subject unregistered-value.*autoRegisterSchemas=true"):
        write(spark, local, SELECTED, "unregistered")
    columns = "named_struct('page', '/p' || id, 'tags', map('n', id)) AS value"
    write(spark, local, columns, "derived", autoRegisterSchemas="true")
    found = sorted((row["tags"]["n"], row["page"]) for row in read(local, "derived"))
    assert found == [(number, f"/p{number}") for number in range(100)]


def test_columns_that_do_not_fit_are_named_before_a_task_starts(spark: Any, local: LocalCluster) -> None:
    with pytest.raises(Exception, match=r"subject visits-value.*value\.page is a column of type bigint"):
        write(spark, local, "named_struct('page', id, 'at', timestamp_millis(id)) AS value", "visits")
    with pytest.raises(Exception, match=r"subject visits-value.*no Avro record Visit"):
        write(spark, local, "'text' AS value", "visits")


def test_sink_and_source_log_in_at_a_registry_with_users(spark: Any, local: LocalCluster, tmp_path: Path) -> None:
    create_topics(local.bootstrap, "closed")
    files = http_files(tmp_path)
    places = tmp_path / "secrets"
    places.write_text(f"reader=reader:{PASSWORDS['reader']}\ntoken={TOKEN}\n")
    with registry_in_thread(**files.settings) as url:
        options = {
            "kafka.bootstrap.servers": local.bootstrap,
            "valueFormat": "avro",
            "schema.registry.url": url,
            "schema.registry.ssl.ca.location": str(files.ca),
        }
        rows = spark.sql("SELECT named_struct('page', '/p' || id) AS value FROM range(100)").write.format("pipeline")
        given = options | {"topic": "closed", "autoRegisterSchemas": "true"}
        with pytest.raises(Exception, match="a user's password or token is needed"):
            rows.mode("append").options(**given).save()
        rows.mode("append").options(**given, **{"bearer.auth.token": f"${{file:{places}:token}}"}).save()
        login = {"basic.auth.user.info": f"${{file:{places}:reader}}", "subscribe": "closed"}
        read = spark.read.format("pipeline").options(**options, **login).load()
        assert sorted(row["value"]["page"] for row in read.collect()) == sorted(f"/p{number}" for number in range(100))
