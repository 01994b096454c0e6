"""Settings of brokers and topics under Kafka's names: declared, checked, changed while the broker runs."""
