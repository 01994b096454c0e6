"""Sockets: the server, the pool of client connections, and the HTTP side of every service."""
