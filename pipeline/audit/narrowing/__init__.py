"""Narrowing: a difference of counts is followed to offset range, batch and record."""
