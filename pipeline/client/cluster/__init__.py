"""A cluster as a client sees it: brokers, metadata, leaders, settings."""
