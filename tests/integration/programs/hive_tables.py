"""Makes Hive tables by the statements of docs/load/export.md, and compares their rows with those of `pipeline.table`.

python hive_tables.py DIRECTORY: empty, for the files, the metastore (Derby) and the warehouse. Prints the number of
rows by table as JSON.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import DataFrame, SparkSession

from pipeline.hadoop.commit.layout import PathFormat, topic_layout
from pipeline.hadoop.commit.manifest import Manifest, OffsetRange, next_offsets
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.ranges.batch_counts import check_coverage
from pipeline.hadoop.table import register_tables
from pipeline.hadoop.table.export import export_table
from tests.support.hand_made_table import framed
from tests.support.load_task import TaskLoad, batch

ROOT = Path(__file__).parents[3]
STATEMENTS = re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs/load/export.md").read_text(), re.MULTILINE | re.DOTALL)
VISIT = json.dumps(
    {
        "type": "record",
        "name": "Visit",
        "fields": [
            {"name": "page", "type": "string"},
            {"name": "user_id", "type": ["null", "long"], "default": None},
        ],
    }
)
NOON_MS = 1_700_006_400_123
COLUMNS = ["_key", "_offset", "_partition", "_timestamp", "_headers", "_tombstone", "page", "user_id", "dt", "hour"]


def load(root: Path, file_format: str, path_format: PathFormat, first: int) -> None:
    """Load ten records from an offset on, over three hours."""
    values = framed(VISIT, [{"page": f"/{n}", "user_id": n if n % 3 else None} for n in range(first, first + 9)])
    times = [NOON_MS + n * 1_000_000 for n in range(10)]
    headers = [("host", b"web"), ("empty", None)]
    records: list[Any] = [(b"k", value, headers, at) for value, at in zip([*values, None], times, strict=True)]
    run_id = f"r{first}"
    task = TaskLoad(root, schemas=lambda _: VISIT, format=file_format, path_format=path_format, run_id=run_id)
    loaded = OffsetRange(partition=4, start=first, end=first + 10)
    covered = check_coverage("t", [loaded], [task.run(batch(first, records), start=first)], 600_000)
    layout, files = topic_layout(str(root), "t"), LocalFileSystem()
    head = read_head(files, layout)
    manifest = Manifest(
        sequence=head.next_sequence,
        run_id=run_id,
        created_ms=NOON_MS,
        topic="t",
        topic_id=None,
        format=file_format,
        window_ms=600_000,
        offsets=next_offsets(head.offsets, [loaded]),
        ranges=(loaded,),
        files=covered.files,
        counts=covered.counts,
        path_format=path_format,
        previous_sha256=head.sha256,
    )
    commit(files, layout, manifest, head)


def hive_session(directory: Path) -> SparkSession:
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}/derby -Duser.timezone=UTC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.hive.convertMetastoreParquet": "false",  # Hive's SerDe reads, not Spark's reader
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("hive-tables")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.enableHiveSupport().getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # Spark complains that it has no reader of Avro of its own
    return spark


def make_table(spark: SparkSession, page: str, name: str, location: Path, repair: str) -> DataFrame:
    """Run the statements of the page with another name and place, and another way to find the partitions."""
    created, repaired = (part.strip() for part in page.split(";") if part.strip())
    known = re.findall(r"CREATE EXTERNAL TABLE (\w+)", created)[0]
    created = created.replace(f"TABLE {known}", f"TABLE {name}")
    spark.sql(re.sub(r"LOCATION '[^']*'", f"LOCATION '{location.as_uri()}'", created))
    assert repaired == f"MSCK REPAIR TABLE {known}"
    spark.sql(repair.format(name))
    return spark.table(name)


def rows(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.select(COLUMNS).collect()), key=lambda row: row[1])


def of_hive(frame: DataFrame, file_format: str) -> DataFrame:
    """Give a Hive table the columns of a loaded one."""
    if file_format == "parquet":
        return (
            frame.selectExpr("*", "timestamp_millis(_timestamp) AS at")
            .drop("_timestamp")
            .withColumnRenamed("at", "_timestamp")
        )
    return frame.selectExpr("*", "value IS NULL AS _tombstone", "value.page", "value.user_id")


def main(directory: Path) -> None:
    spark = hive_session(directory)
    register_tables(spark)
    found: dict[str, int] = {}
    for file_format, page in zip(("parquet", "avro"), STATEMENTS, strict=True):
        lakes = {path_format: directory / f"{file_format}-{path_format}" for path_format in get_args(PathFormat)}
        for path_format, root in lakes.items():
            load(root, file_format, path_format, 0)
            load(root, file_format, path_format, 10)
            table = spark.read.format("pipeline.table").load(f"{root.as_uri()}/t")
            hour = "date_format(_timestamp, 'yyyy-MM-dd') AS dt", "date_format(_timestamp, 'HH') AS hour"
            wanted = rows(table.selectExpr("*", *hour))
            exported = directory / f"{root.name}-export"
            export_table(root.as_uri(), "t", exported.as_uri(), "hive")
            places = [exported] if path_format == "hourly" else [exported, root / "t/hive"]
            for place, repair in zip(
                places, ("MSCK REPAIR TABLE {}", "ALTER TABLE {} RECOVER PARTITIONS"), strict=False
            ):
                name = f"{file_format}_{path_format}_{len(found)}"
                frame = make_table(spark, page, name, place, repair)
                assert "Scan hive" in frame._jdf.queryExecution().toString(), "Hive's SerDe does not read"
                assert rows(of_hive(frame, file_format)) == wanted, name
                found[name] = len(wanted)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
