"""The load job: new records of topics become files, in one commit for each topic."""

from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
from pipeline.hadoop.load.job import LoadResult, run_load
from pipeline.hadoop.load.many import TopicResult, run_loads

__all__ = ["LoadConfig", "LoadResult", "LoadsConfig", "TopicResult", "run_load", "run_loads"]
