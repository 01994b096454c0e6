"""PLAIN: the client sends its name and password, so that only encrypted connections should use it (RFC 4616). Pure."""

import hashlib
import hmac
from collections.abc import Mapping

from pipeline.broker.security.sasl.mechanism import Proof, SaslRefusedError, SaslStep, checked_user
from pipeline.credentials import Secret

REFUSED = "Invalid username or password"
PARTS = 3
_NOBODY = Secret("\0")


class PlainMechanism:
    """The exchange with one client: a single token."""

    def __init__(self, passwords: Mapping[str, Secret]) -> None:
        self._passwords = passwords

    def step(self, token: bytes) -> SaslStep:
        """Take authorization id, name and password, with zero bytes between them. Raises SaslRefusedError."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslRefusedError("the token of PLAIN is not text in UTF-8") from None
        if len(parts) != PARTS:
            raise SaslRefusedError(f"the token of PLAIN has {len(parts)} parts instead of {PARTS}")
        acts_as, user, password = parts
        known = self._passwords.get(user, _NOBODY)
        # hashes take as long to compare for unknown users, and for passwords of any length
        is_equal = hmac.compare_digest(_hashed(known.reveal()), _hashed(password))
        if not is_equal or known is _NOBODY or not password:
            raise SaslRefusedError(REFUSED)
        if acts_as not in {"", user}:
            raise SaslRefusedError("the client asks to act as another user, which nobody may")
        return SaslStep(b"", Proof(checked_user(user)))


def _hashed(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()
