"""Kafka's wire format, sans-IO: bytes to messages and back. No trio, files, clock or logging in here."""
