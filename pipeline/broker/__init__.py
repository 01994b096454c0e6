"""Broker process: partitions on disk, served over Kafka's protocol, registered in ZooKeeper."""
