"""Commits: layout, manifests, their publication, and what readers may read."""

from pipeline.hadoop.commit.publication import committed_urls

__all__ = ["committed_urls"]
