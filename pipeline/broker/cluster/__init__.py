"""The cluster as one broker sees it: brokers, topics and partition states, read from ZooKeeper and written there."""
