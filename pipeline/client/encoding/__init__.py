"""Encoders and decoders: a program's data to the bytes of keys and values, and back."""
