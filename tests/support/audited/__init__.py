"""A topic on its way from producers to files and groups, with real logs, real counters and the real judge."""
