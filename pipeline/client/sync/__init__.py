"""The producer for programs without trio: the same core, on a thread of its own."""
