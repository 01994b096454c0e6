"""The writing half of the Spark data source `pipeline`."""
