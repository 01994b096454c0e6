"""Counting of batches by brokers, producers, mirrors, groups and readers of foreign clusters."""
