"""Topics and settings created, changed and deleted on request."""
