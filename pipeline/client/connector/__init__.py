"""Consumer groups by ZooKeeper: ids, owners and offsets as in Kafka 0.7, and partitions shared by Algorithm 1."""
