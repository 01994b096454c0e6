"""The group consumer: members of a group share partitions by Kafka's group coordinator."""
