"""Compaction of one log: planned, executed, and run as a process."""
