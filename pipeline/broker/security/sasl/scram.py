"""SCRAM-SHA-256 and SCRAM-SHA-512: both ends prove that they know the password, and neither sends it (RFC 5802).

A name without a credential takes the same steps with one that no password has, so that nobody learns which names exist:
its salt and iterations are always the same, at every broker, and differ between names. They look like those of a known
user. Library: scramp.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence

from scramp import ScramException, ScramMechanism

from pipeline.broker.security.sasl.mechanism import Proof, SaslRefusedError, SaslStep, checked_user
from pipeline.coordination.scram_znodes import MIN_ITERATIONS, ScramCredential, ScramHash, ScramShape

REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
MAX_MESSAGE_BYTES = 4096
"""Longest message of a client: SASLprep of a name of combining marks takes a time that grows with its square."""
USUAL_SHAPE = ScramShape(MIN_ITERATIONS, 16)
"""The shape of credentials as long as there is none."""

FindCredential = Callable[[str, ScramHash], ScramCredential | None]
"""Returns the credential of a user for a mechanism."""


class ScramExchange:
    """The exchange with one client: two tokens each way."""

    def __init__(
        self, kind: ScramHash, find: FindCredential, secret: bytes, nonce: str, shapes: Sequence[ScramShape] = ()
    ) -> None:
        """`secret`: random, of the cluster; `nonce`: random, of this exchange; `shapes`: those of known credentials."""
        self._kind = kind
        self._find = find
        self._secret = secret
        self._shapes = shapes or (USUAL_SHAPE,)
        self._user = ""
        self._is_known = False
        self._is_begun = False
        self._server = ScramMechanism(kind.value).make_server(self._credential, s_nonce=nonce)

    def step(self, token: bytes) -> SaslStep:
        """Take the first or the final message of the client. Raises SaslRefusedError."""
        if len(token) > MAX_MESSAGE_BYTES:
            raise SaslRefusedError(REFUSED.format(self._kind.value))
        try:
            text = token.decode()
            if not self._is_begun:
                self._is_begun = True
                self._server.set_client_first(text)
                return SaslStep(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            final = self._server.get_server_final().encode()
        except (ScramException, ValueError, KeyError) as error:
            raise SaslRefusedError(REFUSED.format(self._kind.value)) from error
        if not self._is_known:
            raise SaslRefusedError(REFUSED.format(self._kind.value))
        return SaslStep(final, Proof(checked_user(self._user)))

    def _credential(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = user
        feigned, found = self._feigned(user), self._find(user, self._kind)  # both, which takes the same time for all
        self._is_known = found is not None
        credential = feigned if found is None else found
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations

    def _feigned(self, user: str) -> ScramCredential:
        def derived(purpose: str, size: int | None = None) -> bytes:
            name = f"{self._kind.value}:{purpose}:{user}".encode()
            made = hmac.digest(self._secret, name, self._kind.algorithm)
            return made if size is None else hashlib.shake_256(made).digest(size)

        # a name keeps its shape when others come or go, unless its own goes
        shape = max(self._shapes, key=lambda each: derived(f"shape {each.iterations} {each.salt_bytes}"))
        return ScramCredential(
            salt=derived("salt", shape.salt_bytes),
            stored_key=hashlib.new(self._kind.algorithm, derived("stored")).digest(),
            server_key=derived("server"),
            iterations=shape.iterations,
        )
