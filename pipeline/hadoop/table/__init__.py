"""Tables: the committed files of a topic as one table with one set of columns, for Spark and for engines of folders."""

from pipeline.hadoop.table.spark_table import loaded_table, register_tables

__all__ = ["loaded_table", "register_tables"]
