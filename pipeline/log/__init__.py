"""A partition on disk: segments, indexes, recovery. Synchronous; `files.py` is its only door to the disk."""
