"""TLS, SASL and tokens: how connections are protected, and by which settings."""
