"""`pipeline load sql`: query the committed data of a topic."""

import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.load.commits import Root, Topic, read_data_files
from pipeline.cli.load.interruption import with_spark
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT_QUERY_BYTES = 256 * 1024 * 1024
"""Bytes of files below which a query ends before an optimising compiler would pay off."""


def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL; the table has the topic's name.")],
    topic: Topic,
    root: Root,
    json: Json = False,
) -> None:
    """Query the committed data of a topic."""
    from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

    files = read_data_files(topic, root)
    if not files:
        output.exit_with(f"{topic}: the commits below {root} hold no data files")
    is_short = sum(file.bytes for file in files) < SHORT_QUERY_BYTES
    application = SparkApplication(SparkSettings(app_name="pipeline-sql", is_short=is_short))
    columns, rows = with_spark(application, lambda spark: answer(spark.session(), query, topic, root), "Asking Spark")
    if json:
        output.print_json({"columns": columns, "rows": rows})
    else:
        output.say(_fitted(output.table(columns, rows)))


def answer(spark: "SparkSession", query: str, topic: str, root: str) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a query. Raises typer.Exit if Spark refuses the query."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from pipeline.hadoop.table import loaded_table

    # Spark logs each error as JSON besides raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        loaded_table(spark, root, topic).createOrReplaceTempView(f"`{topic}`")
        frame = spark.sql(query)
        rows = [[v if isinstance(v, int | float | str | None) else str(v) for v in row] for row in frame.collect()]
    except PySparkException as error:
        output.exit_with(_first_sentence(str(error)))
    return frame.columns, rows


def _first_sentence(text: str) -> str:
    """Return the first sentence of a message, without the states, plans and traces after it."""
    return text.strip().split("\n", 1)[0].split(" SQLSTATE:", 1)[0]


def _fitted(text: str) -> str:
    """Cut lines to the width of the terminal."""
    width = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())
