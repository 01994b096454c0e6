"""Topics: which are copied into which replicas, and their settings."""
