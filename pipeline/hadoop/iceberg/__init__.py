"""Iceberg tables: a load's Parquet files and offsets become one snapshot of a table in a catalog."""
