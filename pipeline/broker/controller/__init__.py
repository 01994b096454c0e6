"""The controller: the broker that decides which replicas lead, its election, and its writes to ZooKeeper."""
