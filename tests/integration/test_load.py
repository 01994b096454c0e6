"""Loads by a real Spark from a real broker: what arrives, what the manifests say, what goes wrong by name."""

import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest
import typer

from pipeline.cli.load.query import answer
from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import job as load_module
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import BadRecordError, LoadError, prepare_load, run_load
from pipeline.hadoop.ranges.plan import DataLossError
from pipeline.hadoop.table import loaded_table
from pipeline.protocol.errors import KafkaError
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import FIRST_MS, LoadedTopic
from tests.support.registry_thread import registry_in_thread
from tests.support.secured_http import PASSWORDS, basic, http_files

DEADLINE_S = 400  # Spark, on a busy machine
EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "page", "type": "string"}, {"name": "status", "type": ["null", "int"], "default": None}],
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local"), registry=True) as running:
        yield running


@pytest.fixture
def topic(local: Any, tmp_path: Path) -> Any:
    return LoadedTopic(local.bootstrap, tmp_path.as_uri())


def now_ms() -> Any:
    return time.time_ns() // 1_000_000


def load(spark: Any, topic: Any, **settings: Any) -> Any:
    return run_load(spark, LoadConfig.from_settings(topic.settings(**settings)), clock=now_ms)


@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_a_load_takes_the_records_since_the_last_one(spark: Any, topic: Any, file_format: Any) -> None:
    topic.produce(3000)
    first = load(spark, topic, format=file_format)
    assert (first.committed, first.records) == (True, 3000)
    assert topic.check_exact() == 3000
    nothing = load(spark, topic, format=file_format)
    assert not nothing.committed
    topic.produce(500)
    assert load(spark, topic, format=file_format).records == 500
    assert topic.check_exact() == 3500
    assert [manifest.sequence for manifest in topic.manifests()] == [1, 2]
    assert topic.files_on_disk() == first.files + len(topic.manifests()[1].files)
    assert not list(Path(f"{topic.root.removeprefix('file://')}/{topic.name}/_runs").iterdir())


@pytest.fixture(scope="module")
def event_schema_id(local: Any) -> Any:
    answer = httpx.post(
        f"{local.registry}/subjects/events-value/versions", json={"schema": json.dumps(EVENT)}, timeout=60
    )
    return answer.raise_for_status().json()["id"]


def event(schema_id: Any, number: Any) -> Any:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(EVENT), {"page": f"/{number}", "status": number % 7})
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_x18_datums_by_the_registry_and_bad_ones_in_quarantine(
    spark: Any, local: Any, topic: Any, event_schema_id: Any, file_format: Any
) -> None:
    topic.produce(200, lambda number: event(event_schema_id, number) if number != 77 else b"no datum")
    settings = {"value.format": "avro", "schema.registry.url": local.registry, "format": file_format}
    with pytest.raises(BadRecordError, match=f"{topic.name}-\\d offset \\d+: the value does not begin"):
        load(spark, topic, **settings)
    assert topic.manifests() == []
    assert topic.files_on_disk() == 0
    result = load(spark, topic, **settings, **{"on.bad.record": "quarantine"})
    assert (result.records, result.quarantined) == (199, 1)
    pages = {row["page"] if file_format == "parquet" else row["value"]["page"] for row in topic.rows()}
    assert pages == {f"/{number}" for number in range(200) if number != 77}
    (aside,) = topic.table().data_files(quarantined=True)
    assert aside.path.startswith("quarantine/")
    assert [batch.aside for batch in aside.batches] == [1]
    assert sum(count.records for count in topic.table().counts.values()) == 199


@pytest.mark.long
def test_a_load_logs_in_at_a_registry_with_users(spark: Any, topic: Any, tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    files = http_files(tmp_path / "registry")
    with registry_in_thread(**files.settings) as url:
        path, body = f"{url}/subjects/{topic.name}-value/versions", {"schema": json.dumps(EVENT)}
        answer = httpx.post(path, json=body, headers=basic("writer"), verify=files.context)
        topic.produce(200, partial(event, answer.raise_for_status().json()["id"]))
        settings = {
            "value.format": "avro",
            "schema.registry.url": url,
            "schema.registry.ssl.ca.location": str(files.ca),
        }
        with pytest.raises(Exception, match="the password or token is not right"):
            load(spark, topic, **settings, **{"basic.auth.user.info": "reader:wrong"})
        login = {"basic.auth.user.info": f"reader:{PASSWORDS['reader']}"}
        assert load(spark, topic, **settings, **login).records == 200
    assert {row["page"] for row in topic.rows()} == {f"/{number}" for number in range(200)}


class PausedFileSystem(LocalFileSystem):
    """Waits before it commits."""

    def __init__(self) -> None:
        super().__init__()
        self.ready, self.go_on = threading.Event(), threading.Event()

    def publish_exclusive(self, path: Any, content: Any, *, temporary: Any) -> None:
        self.ready.set()
        assert self.go_on.wait(DEADLINE_S)
        super().publish_exclusive(path, content, temporary=temporary)


def test_x16_one_of_two_loaders_commits_data_with_offsets_and_the_other_is_fenced(
    spark: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.produce(1000)
    paused = PausedFileSystem()
    real = load_module.open_filesystem  # type: ignore[attr-defined]
    outcome = []

    def lose() -> None:
        try:
            load(spark, topic)
        except CommitConflictError as error:
            outcome.append(error)

    monkeypatch.setattr(load_module, "open_filesystem", lambda url, **_: (paused, real(url)[1]))
    loser = threading.Thread(target=lose)
    loser.start()
    assert paused.ready.wait(DEADLINE_S)
    monkeypatch.setattr(load_module, "open_filesystem", real)
    topic.produce(100)
    winner = load(spark, topic)
    paused.go_on.set()
    loser.join()
    assert [error.winner for error in outcome] == [winner.manifest.run_id]
    assert topic.check_exact() == winner.records == 1100
    assert topic.files_on_disk() == winner.files


def test_commands_that_need_no_spark_start_none(topic: Any) -> None:
    with pytest.raises(KafkaError, match="nowhere"):
        prepare_load(LoadConfig.from_settings(topic.settings(topic="nowhere")), clock=now_ms)
    config = LoadConfig.from_settings(topic.settings())
    assert prepare_load(config, clock=now_ms) is None
    topic.produce(10)
    prepared = prepare_load(config, clock=now_ms)
    assert prepared is not None
    assert prepared.plan.ranges


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT valu FROM `{}`", "with name `valu` cannot be resolved"),
        ("SELECT value FROM visits", "The table or view `visits` cannot be found"),
        ("SELEC value FROM `{}`", "Syntax error"),
    ],
)
def test_a_query_that_spark_refuses(
    spark: Any, topic: Any, capfd: pytest.CaptureFixture[str], query: Any, said: Any
) -> None:
    topic.produce(10)
    load(spark, topic)
    with pytest.raises(typer.Exit):
        answer(spark, query.format(topic.name), topic.name, lambda opened: loaded_table(opened, topic.root, topic.name))
    stderr = capfd.readouterr().err
    assert said in stderr
    assert stderr.count("\n") == 1


def test_a_job_that_fails_leaves_nothing(spark: Any, local: Any, topic: Any) -> None:
    topic.produce(10, lambda number: event(1, number))
    settings = {"value.format": "avro", "schema.registry.url": local.registry, "on.bad.record": "quarantine"}
    prepared = prepare_load(LoadConfig.from_settings(topic.settings(**settings)), clock=now_ms)
    assert prepared is not None
    broken = prepared.config.model_copy(update={"registry": ("ftp://nowhere",)})
    with pytest.raises(LoadError, match=r"schema\.registry\.url"):
        replace(prepared, config=broken).run(spark)
    assert topic.manifests() == []
    assert topic.files_on_disk() == 0


def test_another_format_than_before_is_refused(spark: Any, topic: Any) -> None:
    topic.produce(10)
    load(spark, topic, format="avro")
    with pytest.raises(LoadError, match="format is parquet, but the topic was loaded as avro so far"):
        load(spark, topic, format="parquet")


def test_a_topic_made_anew_is_refused(spark: Any, local: Any, topic: Any) -> None:
    from confluent_kafka.admin import AdminClient

    topic.produce(100)
    load(spark, topic)
    admin = AdminClient({"bootstrap.servers": local.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(60)
    deadline = time.monotonic() + 180
    while True:
        try:
            again = LoadedTopic(local.bootstrap, topic.root, topic.name)
            break
        except Exception:
            assert time.monotonic() < deadline
    again.produce(300)
    with pytest.raises(DataLossError, match="created again"):
        load(spark, again)


def test_a_load_may_begin_at_a_point_in_time(spark: Any, topic: Any) -> None:
    topic.produce(3000)
    start = FIRST_MS + 15 * 60_000
    load(spark, topic, **{"start.timestamp.ms": start})
    assert sorted(int(row["value"]) for row in topic.rows()) == list(range(1500, 3000))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("format", "orc"), ("window.ms", 1), ("value.format", "avro"), ("colour", "red"), ("root", "data")],
)
def test_wrong_settings_are_named(spark: Any, topic: Any, setting: Any, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=setting if setting != "value.format" else "schema.registry.url"):
        load(spark, topic, **{setting: value})
