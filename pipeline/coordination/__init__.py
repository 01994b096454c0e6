"""ZooKeeper: what the znodes hold and the one place that talks to them."""
