"""OAUTHBEARER: the client sends a token that an authority has signed for it (RFC 7628, KIP-255, KIP-768). Pure.

A token that is refused is answered by a JSON object, as Kafka has it; the client says that it has read that with a
single byte, and the authentication fails. The reason stands in the broker's log alone.
"""

import re
from collections.abc import Callable

from pipeline.broker.security.sasl.mechanism import Proof, SaslRefusedError, SaslStep, checked_user
from pipeline.errors import PipelineError

MALFORMED = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
INVALID_TOKEN = '{"status":"invalid_token"}'
READ_IT = b"\x01"
"""Answer of the client to the JSON object."""
MAX_USER_SHOWN = 100

_FIRST = re.compile(
    r"n,(?:a=(?P<acts_as>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_AUTH = "auth"

VerifyToken = Callable[[str], Proof]
"""Returns what a token proves. Raises PipelineError with the reason."""


class OAuthBearerMechanism:
    """The exchange with one client: a token, and the answer to a refusal."""

    def __init__(self, verify: VerifyToken) -> None:
        self._verify = verify
        self._refusal: SaslRefusedError | None = None

    def step(self, token: bytes) -> SaslStep:
        """Take the first message, or the answer to a refusal. Raises SaslRefusedError."""
        if self._refusal is not None:
            raise self._refusal
        acts_as, bearer = _read_first(token)
        try:
            proof = self._verify(bearer)
        except PipelineError as error:
            self._refusal = SaslRefusedError(INVALID_TOKEN, reason=f"the token: {error}")
            return SaslStep(INVALID_TOKEN.encode())
        user = checked_user(proof.user)
        if acts_as not in {"", user}:
            raise SaslRefusedError(
                f"Authentication failed: Client requested an authorization id ({acts_as[:MAX_USER_SHOWN]}) that is "
                f"different from the token's principal name ({user})"
            )
        return SaslStep(b"", proof)


def _read_first(message: bytes) -> tuple[str, str]:
    """Return the user that the client wants to act as, and its token. Raises SaslRefusedError."""
    try:
        matched = _FIRST.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        matched = None
    if matched is None:
        raise SaslRefusedError(MALFORMED, reason="the first message of OAUTHBEARER is malformed")
    pairs = [pair.partition("=") for pair in matched["pairs"].split("\x01") if pair]
    auths = [value for name, _, value in pairs if name == _AUTH]
    bearer = _BEARER.fullmatch(auths[0]) if len(auths) == 1 else None
    if bearer is None:
        raise SaslRefusedError(MALFORMED, reason="the first message of OAUTHBEARER has no single auth=Bearer TOKEN")
    acts_as = (matched["acts_as"] or "").replace("=2C", ",").replace("=3D", "=")
    return acts_as, bearer["token"]
