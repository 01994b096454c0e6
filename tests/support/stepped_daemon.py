"""PySpark's daemon, whose Python workers stop at the steps of a load (`spark.python.daemon.module`)."""

from tests.support.load_steps import stop_at_steps

if __name__ == "__main__":
    from pyspark.daemon import manager

    stop_at_steps()
    manager()
