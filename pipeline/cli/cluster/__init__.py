"""`pipeline cluster` and descriptions of clusters and brokers."""
