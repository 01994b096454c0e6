"""Kafka requests: dispatched to one handler per api key, with what the handlers share."""
