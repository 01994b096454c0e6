"""The producer: records gathered into batches and sent."""
