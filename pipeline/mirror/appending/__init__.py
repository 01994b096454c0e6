"""Append mode: replicas in any Kafka cluster, which gives their batches its own offsets."""
