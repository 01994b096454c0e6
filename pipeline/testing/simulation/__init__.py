"""A cluster in one thread, on simulated time: real brokers and clients, and all their trouble chosen by a seed."""
