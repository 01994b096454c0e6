"""The producer: gathers records into batches and sends them."""
