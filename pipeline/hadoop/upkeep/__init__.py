"""Upkeep of loaded tables: compaction, retention, removal, verification, lag and replay."""
