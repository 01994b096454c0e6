"""Monitoring events: what counters tell the audit, as values and as records of the audit topic."""
