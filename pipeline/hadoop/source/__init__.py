"""The Spark data source `pipeline`."""

from pipeline.hadoop.source.data_source import PipelineDataSource

__all__ = ["PipelineDataSource"]
