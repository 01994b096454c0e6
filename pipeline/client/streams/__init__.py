"""Streams of what a group of consumers reads: records, batches, columns, decoded messages."""
