"""Metrics of the broker, for Prometheus."""
