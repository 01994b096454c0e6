"""Spark loads into a Hadoop file system: data and offsets in one atomic commit."""
