"""The log of a registry: who may write to it, and how it is followed."""
