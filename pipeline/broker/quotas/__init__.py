"""Byte rates of clients: how much they may, how much they do, and for how long they have to wait."""
