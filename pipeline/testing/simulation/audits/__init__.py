"""The audit beside a simulated site: counters, producers that count, the audit service, and the rules of its word."""
