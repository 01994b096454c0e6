"""All replicas of one broker: their logs opened, assigned, kept up, and removed."""
