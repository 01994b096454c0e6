"""HTTP API of a registry: paths, bodies, answers."""
