"""Compaction as a broker schedules it: which log, in which process."""
