"""Counts of batches at every tier, and their comparison: exact, missing, extra or changed."""
