"""Archive of the classes of a Spark driver, with which its JVM starts in half the time (class data sharing, JEP 350).

`python -m pipeline.hadoop.load.class_archive` writes the archive beside the installed packages. A JVM checks that its
version and jars are those of the archive. Without an archive, or with a foreign one, it starts as ever, and says
nothing. It would crash on one that lost its end, so the name of an archive tells its size.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
DUMP_TIMEOUT_S: Final = 300.0


def archive_directory() -> Path:
    """Return the directory of the archive for this PySpark."""
    return Path(sys.prefix, "share", "pipeline", f"spark-{version('pyspark')}")


def archive_options(directory: Path) -> str:
    """Return the options of Java that use the archive; none if there is none, or if its path cannot be an option."""
    if any(letter.isspace() or letter in "\"'\\" for letter in str(directory)):
        return ""
    for archive in directory.glob("*.jsa"):
        if archive.name == _name(archive):
            return f"-XX:SharedArchiveFile={archive} {_SILENT}"
    return ""


def _name(archive: Path) -> str:
    return f"{archive.stat().st_size}.jsa"


def write_archive(directory: Path) -> None:
    """Start Spark, run a job, and have its JVM write the archive at its end, in place of all others.

    Raises SparkStartError, OSError.
    """
    from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

    directory.mkdir(parents=True, exist_ok=True)
    for older in directory.iterdir():
        older.unlink()
    written = directory / "new"
    java = SparkSettings(is_short=True).spark_settings()["spark.driver.extraJavaOptions"]
    java = java.replace(archive_options(archive_directory()), "")
    java += f" -XX:ArchiveClassesAtExit={written} {_SILENT}"
    application = SparkApplication(SparkSettings(settings={"spark.driver.extraJavaOptions": java}))
    try:
        application.without_sql().sparkContext.parallelize([1], 1).map(str).collect()
    finally:
        application.stop(grace_s=DUMP_TIMEOUT_S)
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(directory / _name(written))


if __name__ == "__main__":
    write_archive(archive_directory())
