"""Counts at every step, and the comparison that says what is exact, missing, doubled or changed."""
