"""The consumer: fetches batches ahead and opens them."""
