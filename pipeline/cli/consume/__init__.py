"""`pipeline consume`: records become lines."""
