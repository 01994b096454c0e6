"""Comparison of the counts of all tiers: pure judgements, and the sentences that explain them."""
