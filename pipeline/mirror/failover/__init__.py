"""Failover: promotion of replicas, and the return of a failed cluster."""
