"""What applications use: producer, consumer, admin, registry client and Avro serialisers."""
