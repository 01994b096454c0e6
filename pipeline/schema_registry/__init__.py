"""Avro contracts over HTTP with Confluent's API, kept in the `_schemas` topic."""
