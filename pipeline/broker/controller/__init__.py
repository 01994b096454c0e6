"""One broker of the cluster decides who leads: its election, its decisions, and their way into ZooKeeper."""
