"""Log files inspected and verified from outside. Writes nothing."""
