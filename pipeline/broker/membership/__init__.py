"""A broker as a member of its cluster: identity, registration, session."""
