"""The load job: new records of a topic become files of one commit."""

from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import LoadResult, run_load

__all__ = ["LoadConfig", "LoadResult", "run_load"]
