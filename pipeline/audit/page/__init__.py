"""The page of the audit service: its static files, and the routes that serve them."""
