"""Certificates for tests, as clusters on one machine have them."""

from pipeline.cli.secured.certificates import Authority, KeyPair

__all__ = ["Authority", "KeyPair"]
