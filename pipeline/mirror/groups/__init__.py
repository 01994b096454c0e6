"""Committed offsets of consumer groups."""
