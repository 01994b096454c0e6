"""`pipeline perf`: performance tests."""
