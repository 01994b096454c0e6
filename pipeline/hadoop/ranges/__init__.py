"""Offset ranges of topics: planned, read, counted."""
