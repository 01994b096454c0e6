"""Threads, turns of the event loop, bounds on kept memory, and clock steps of one broker process."""
