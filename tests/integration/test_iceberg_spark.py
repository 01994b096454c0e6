"""Spark 4.1 with Iceberg's runtime reads and maintains what loads wrote; pyiceberg's rows are the measure."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.integration.test_parquet_columns import KINDS, plain
from tests.support.jars import Artifact, fetch_jars
from tests.support.load_topic import LoadedTopic
from tests.support.pyspark_versions import python_with
from tests.support.rest_catalog import SQLITE, RestCatalogServer, running_rest_catalog
from tests.unit.hadoop.avro.evolution import encoded

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "iceberg_with_spark.py"
SPARK = "4.1.1"
RUNTIME = Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0")
DEADLINE_S = 600
HOUR_OF_RECORDS = 6000
FIELDS = [{"name": name, "type": schema} for name, (schema, _, _) in KINDS.items()]
FIRST = {"type": "record", "name": "Kinds", "fields": [*FIELDS, {"name": "count", "type": "int"}]}
WIDER = FIRST | {
    "fields": [
        *FIELDS,
        {"name": "count", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": "double"}, "default": {}},
        {"name": "who", "type": ["null", "string"], "default": None},
    ]
}
VALUE = {name: value for name, (_, value, _) in KINDS.items()}


@dataclass
class LoadedTable:
    """A topic with loads of two schemas in three hours, in a REST catalog and in SQLite; and what Spark is told."""

    server: RestCatalogServer
    registry: str
    topic: LoadedTopic
    spark: Any

    def produce(self, schema: Any, value: Any, count: int = 20) -> None:
        """Records of an hour of their own, one of them a tombstone and one that cannot be decoded."""
        url = f"{self.registry}/subjects/{self.topic.name}-value/versions"
        schema_id = httpx.post(url, json={"schema": json.dumps(schema)}, timeout=60).raise_for_status().json()["id"]
        bare = json.loads(json.dumps(schema).replace("logicalType", "meaning"))
        sent = b"\0" + schema_id.to_bytes(4, "big") + encoded(bare, value)
        self.topic.produced = -(-self.topic.produced // HOUR_OF_RECORDS) * HOUR_OF_RECORDS
        self.topic.produce(count, lambda number: {3: None, 7: b"bad"}.get(number % HOUR_OF_RECORDS, sent))

    def load(self, root: str, **catalog: str) -> Any:
        settings = {"value.format": "avro", "schema.registry.url": self.registry, "on.bad.record": "quarantine"}
        given = settings | {f"iceberg.catalog.{name}": value for name, value in catalog.items()} | {"root": root}
        config = LoadConfig.from_settings(self.topic.settings(table="iceberg", **given))
        return run_load(self.spark, config, clock=lambda: time.time_ns() // 1_000_000)

    @property
    def name(self) -> str:
        return f"pipeline.`{self.topic.name}`"

    def table(self, **catalog: str) -> Any:
        return load_catalog("pipeline", **catalog).load_table(("pipeline", self.topic.name))


@pytest.fixture
def loaded(spark: Any, tmp_path: Path) -> Iterator[LoadedTable]:
    directory = tmp_path / "catalog"
    directory.mkdir()
    with (
        LocalCluster(tmp_path / "cluster", registry=True) as local,
        running_rest_catalog(directory) as server,
    ):
        topic = LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())
        yield LoadedTable(server, local.registry, topic, spark)


def run_spark(directory: Path, catalogs: Any, *statements: tuple[str | None, str]) -> None:
    """Rows of queries go to files of the given names below `directory`."""
    jars = ":".join(str(path) for path in sorted(fetch_jars(RUNTIME, SQLITE).glob("*.jar")))
    named = [(None if name is None else str(directory / name), query) for name, query in statements]
    python = python_with(SPARK)
    environment = os.environ | {"PYSPARK_PYTHON": python}
    environment.pop("SPARK_HOME", None)
    command = [python, str(PROGRAM), jars, json.dumps(catalogs), json.dumps(named)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=directory, env=environment
    )
    errors = [line for line in ended.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert ended.returncode == 0, "\n".join(errors)[-6000:]


def rows_of(table: Any) -> Any:
    found = [plain(row) for row in table.to_pylist()]
    return sorted(found, key=lambda row: (row.get("_kafka_partition") or 0, row.get("_offset") or 0))


def test_spark_reads_and_maintains_loaded_tables(loaded: LoadedTable, tmp_path: Path) -> None:
    rest = loaded.server.properties
    lake, other = loaded.topic.root, (tmp_path / "other").as_uri()
    snapshots = []
    for schema, value in (
        (FIRST, VALUE | {"count": 5}),
        (WIDER, VALUE | {"count": 2**40, "tags": {"a": 1.5}, "who": "me"}),
        (WIDER, VALUE | {"count": -1, "tags": {}, "who": None}),
    ):
        loaded.produce(schema, value)
        assert loaded.load(lake, **rest).records == 19
        assert loaded.load(other).records == 19
        snapshots.append(loaded.table(**rest).current_snapshot())
    whole = loaded.table(**rest).scan().to_arrow()
    assert whole.num_rows == 57
    name, late = loaded.name, "_timestamp >= TIMESTAMP '2023-11-15 00:00:00'"
    between = (snapshots[1].timestamp_ms + 1) / 1000
    # An SQL catalog of pyiceberg is one of Iceberg's JDBC catalogs, of the same name.
    sqlite = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/other/_catalog.db", "jdbc.schema-version": "V1"}
    catalogs = {
        "rest": {"type": "rest", "uri": loaded.server.url},
        "pipeline": sqlite | {"warehouse": other, "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"},
    }
    run_spark(
        tmp_path,
        catalogs,
        ("whole", f"SELECT * FROM rest.{name}"),
        ("sqlite", f"SELECT * FROM pipeline.{name}"),
        ("version", f"SELECT * FROM rest.{name} VERSION AS OF {snapshots[0].snapshot_id}"),
        ("time", f"SELECT * FROM rest.{name} TIMESTAMP AS OF timestamp_millis({int(between * 1000)})"),
        ("late", f"SELECT * FROM rest.{name} WHERE {late}"),
        ("hours", f"SELECT partition FROM rest.{name}.partitions"),
    )
    found = {each: pq.read_table(tmp_path / each) for each in ("whole", "sqlite", "version", "time", "late", "hours")}
    assert found["whole"].column_names == whole.column_names
    assert rows_of(found["whole"]) == rows_of(whole)
    assert rows_of(found["sqlite"]) == rows_of(loaded.table(**sqlite_of(other)).scan().to_arrow()) == rows_of(whole)
    first = loaded.table(**rest).scan(snapshot_id=snapshots[0].snapshot_id).to_arrow()
    assert rows_of(found["version"]) == rows_of(first)
    assert found["time"].num_rows == 38
    assert found["hours"].num_rows == 3
    assert found["late"].num_rows == 19
    check_pruning(loaded, tmp_path, catalogs)


def sqlite_of(root: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root.removeprefix('file://')}/_catalog.db"}


def check_pruning(loaded: LoadedTable, directory: Path, catalogs: Any) -> None:
    """A query of one hour reads no file of another: it succeeds after those are gone."""
    folder = Path(loaded.topic.root.removeprefix("file://"), loaded.topic.name, "hourly")
    times = loaded.table(**loaded.server.properties).scan(selected_fields=("_timestamp",)).to_arrow()
    last = max(times.column("_timestamp").to_pylist()).replace(minute=0, second=0, microsecond=0)
    for path in folder.rglob("*.parquet"):
        if path.parent.relative_to(folder) != Path(f"{last:%Y/%m/%d/%H}"):
            path.unlink()
    query = f"SELECT uuid FROM rest.{loaded.name} WHERE"  # counts would come from the metadata alone
    bounds = f"_timestamp >= TIMESTAMP '{last:%F %T}' AND _timestamp < TIMESTAMP '{last + timedelta(hours=1):%F %T}'"
    run_spark(directory, catalogs, ("pruned", f"{query} {bounds}"))
    found = pq.read_table(directory / "pruned").column("uuid").to_pylist()
    assert sorted(found, key=str) == [VALUE["uuid"]] * 18 + [None]
    with pytest.raises(AssertionError, match=r"NotFound|does not exist"):
        run_spark(directory, catalogs, ("whole", f"{query} true"))


def test_loads_go_on_after_upkeep_by_spark(loaded: LoadedTable, tmp_path: Path) -> None:
    """Spark joins files, expires all snapshots but its own, and removes orphans: no row and no bad record is lost."""
    rest, lake = loaded.server.properties, loaded.topic.root
    for count in (1, 2):
        loaded.produce(FIRST, VALUE | {"count": count})
        loaded.load(lake, **rest)
    folder = Path(lake.removeprefix("file://"), loaded.topic.name)
    before = rows_of(loaded.table(**rest).scan().to_arrow())
    aside = sorted(path.read_bytes() for path in folder.rglob("*.avro") if "metadata" not in path.parts)
    assert len(aside) == 2
    for path in folder.rglob("*"):  # an orphan must be old
        os.utime(path, (1_700_000_000, 1_700_000_000))
    table, now = f"table => '{loaded.name}'", "TIMESTAMP '2100-01-01 00:00:00'"
    catalogs = {"rest": {"type": "rest", "uri": loaded.server.url}}
    rewrite = f"CALL rest.system.rewrite_data_files({table}, options => map('rewrite-all', 'true'))"
    orphans = f"CALL rest.system.remove_orphan_files({table}, older_than => TIMESTAMP '2024-01-01 00:00:00')"
    expire = f"CALL rest.system.expire_snapshots({table}, older_than => {now}, retain_last => 1)"
    run_spark(tmp_path, catalogs, (None, rewrite), (None, expire), ("orphans", orphans))
    left = sorted(path.read_bytes() for path in folder.rglob("*.avro") if "metadata" not in path.parts)
    assert left == aside, pq.read_table(tmp_path / "orphans").to_pylist()
    table_now = loaded.table(**rest)
    assert len(table_now.metadata.snapshots) == 1
    assert rows_of(table_now.scan().to_arrow()) == before
    loaded.produce(WIDER, VALUE | {"count": 3, "tags": {}, "who": "me"})
    assert loaded.load(lake, **rest).records == 19
    found = loaded.table(**rest).scan().to_arrow()
    assert found.num_rows == 57
    assert len({(row["_kafka_partition"], row["_offset"]) for row in found.to_pylist()}) == 57
    run_spark(tmp_path, catalogs, ("whole", f"SELECT * FROM rest.{loaded.name}"))
    assert rows_of(pq.read_table(tmp_path / "whole")) == rows_of(found)
