"""Compaction by the broker: chooses a log, and a process that cleans it."""
