"""A data pipeline for several datacenters: brokers, mirror, schema registry, audit and Spark loads."""
