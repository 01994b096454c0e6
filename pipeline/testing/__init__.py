"""Parts for tests, ours and yours: a local cluster, a disk that fails on purpose, a ZooKeeper in memory."""
