"""A client of a schema registry, and Avro data by its schemas."""
