"""The verbs of `pipeline schema`."""
