"""SASL mechanisms, the broker's side."""
