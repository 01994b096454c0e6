"""Copies the logs of live clusters into the offline one: the same batches at the same offsets."""
