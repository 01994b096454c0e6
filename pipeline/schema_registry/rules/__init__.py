"""Rules of a registry: commands are decided against the state."""
