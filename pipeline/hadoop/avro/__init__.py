"""Avro datums and schemas, as bytes and as columns."""
