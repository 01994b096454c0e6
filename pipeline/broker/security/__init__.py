"""Authentication of clients, and decisions about what they may do."""
