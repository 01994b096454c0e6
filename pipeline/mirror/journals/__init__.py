"""The partition table, the gap ledger and the source epochs: state of mirrors in topics of the hub."""
