"""The status page of a mirror, and the history and the list of gaps behind it."""
