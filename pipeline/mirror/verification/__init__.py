"""Compares sources and replicas by sums over offset ranges, and narrows differences to batches."""
