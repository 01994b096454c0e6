"""Assignors: functions from the members of a group and its topics to the partitions of each member."""
