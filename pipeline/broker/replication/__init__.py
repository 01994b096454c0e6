"""A partition on several brokers: its leader, its followers, and how far they agree."""
