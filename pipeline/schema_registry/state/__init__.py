"""State of a registry, folded from the events of its log."""
