"""Guards: what a client may not do is taken out of its request before a handler sees it, and answered here."""
