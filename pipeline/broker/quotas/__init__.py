"""Byte rates of clients: quotas, usage, and the waits that hold clients to their quotas."""
