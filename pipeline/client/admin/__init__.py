"""Administration: topics, settings, brokers, groups, offsets, elections, reassignments."""
