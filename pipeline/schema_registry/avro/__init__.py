"""Avro schemas: parsed, compared by canonical form, and resolved against one another, all within bounds of work."""
