"""What a mirror keeps in topics of the hub: the partition table, gaps, source epochs."""
