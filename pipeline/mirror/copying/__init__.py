"""Copies partitions: where each continues, what it appends, how far it is."""
