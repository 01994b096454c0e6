"""Contracts of topics with their producers: schema ids that a schema registry knows, and datums of these schemas."""
