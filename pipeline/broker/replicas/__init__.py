"""Replicas of one broker: opens their logs, assigns their roles, flushes, checkpoints, expires and removes."""
