"""The load job: new records of a topic become files of one commit."""

from pipeline.hadoop.load.job import LoadConfig, LoadResult, run_load

__all__ = ["LoadConfig", "LoadResult", "run_load"]
