"""Log directories: every log of a broker, and the files that describe them."""
