"""Several mirror processes share the partitions of their sources: members, assignment, copier epochs."""
