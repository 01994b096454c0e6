"""`pipeline produce`: lines become records."""
