"""Counts of all tiers, as the audit topics hold them."""
