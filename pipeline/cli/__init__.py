"""The command `pipeline`: settings, wiring and output. Every other room is put together here."""
