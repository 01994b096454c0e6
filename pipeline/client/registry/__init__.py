"""A client of a schema registry, and Avro data with its schemas."""
