"""`pipeline load sql`: query the committed data of a topic."""

import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.load.commits import CatalogAssignments, LoadFile, Root, Topic, iceberg_history, read_data_files
from pipeline.cli.load.interruption import with_spark
from pipeline.cli.load.settings import catalog_settings, log_in_to_query
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SHORT_QUERY_BYTES = 256 * 1024 * 1024
"""Bytes of files below which a query ends before an optimising compiler would pay off."""


def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL; the table has the topic's name.")],
    topic: Topic,
    root: Root,
    config: LoadFile = None,
    assignments: CatalogAssignments = None,
    json: Json = False,
) -> None:
    """Query the committed data of a topic."""
    from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

    kerberos = log_in_to_query(config, topic, assignments or [])
    history = iceberg_history(topic, root, catalog_settings(config, topic, assignments or []))
    files = read_data_files(topic, root) if history is None else history.files()
    if not files:
        output.exit_with(f"{topic}: the commits below {root} hold no data files")

    def open_table(spark: "SparkSession") -> "DataFrame":
        if history is None:
            from pipeline.hadoop.table import loaded_table

            return loaded_table(spark, root, topic)
        from pipeline.hadoop.iceberg.spark_source import iceberg_frame

        return iceberg_frame(spark, history.table)

    is_short = sum(file.bytes for file in files) < SHORT_QUERY_BYTES
    application = SparkApplication(SparkSettings(app_name="pipeline-sql", is_short=is_short, settings=kerberos))
    columns, rows = with_spark(
        application, lambda spark: answer(spark.session(), query, topic, open_table), "Asking Spark"
    )
    if json:
        output.print_json({"columns": columns, "rows": rows})
    else:
        output.say(fitted(output.table(columns, rows)))


def answer(
    spark: "SparkSession", query: str, topic: str, open_table: "Callable[[SparkSession], DataFrame]"
) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a query. Raises typer.Exit if Spark refuses the query."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # Spark logs each error as JSON besides raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        open_table(spark).createOrReplaceTempView(f"`{topic}`")
        frame = spark.sql(query)
        rows = [[v if isinstance(v, int | float | str | None) else str(v) for v in row] for row in frame.collect()]
    except PySparkException as error:
        output.exit_with(_first_sentence(str(error)))
    return frame.columns, rows


def _first_sentence(text: str) -> str:
    """Return the first sentence of a message, without the states, plans and traces after it."""
    return text.strip().split("\n", 1)[0].split(" SQLSTATE:", 1)[0]


def fitted(text: str) -> str:
    """Cut lines to the width of the terminal, if the output is one."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())
