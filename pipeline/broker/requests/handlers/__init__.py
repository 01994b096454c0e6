"""Handlers of requests, one file per api key."""
