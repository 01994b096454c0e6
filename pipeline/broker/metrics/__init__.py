"""What the broker says of itself to Prometheus."""
