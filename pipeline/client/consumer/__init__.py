"""The consumer: batches fetched ahead and opened."""
