"""`pipeline load`: one file per group of commands."""
