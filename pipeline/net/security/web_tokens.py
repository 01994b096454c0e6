"""JSON Web Tokens signed with a published key: keys of a JWKS document, and the check of a token. Pure.

Invariants:
- A key is used with the algorithms of its own type alone, and with no other than its `alg`, if it has one. Neither
  `none` nor HMAC is among them: with a public key as secret, everybody could sign.
- Claims count only behind a signature that holds. Times are compared with `now_ms`, never with a clock of this module.
- A token without an end is refused.

Source: RFC 7515, 7517, 7518, 7519, 8725. Library: PyJWT, for signatures. Heavy import (cryptography).
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from pipeline.errors import PipelineError

MAX_KEYS = 100
"""Bound of the keys of a document; the further ones are left out."""
MAX_TOKEN_LETTERS = 65_536
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
MAX_TIME_S = 2**43
"""Latest time that a token may name, in s: far away, and still a number of ms that answers can hold."""

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE = {
    "secp256r1": frozenset({"ES256"}),
    "secp384r1": frozenset({"ES384"}),
    "secp521r1": frozenset({"ES512"}),
}
_UNCHECKED: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
"""Claims that PyJWT would compare with its own clock, or takes in more forms than are wanted here."""


class TokenRefusedError(PipelineError):
    """A token that proves nothing. The message is for the log of the server, and holds no part that is secret."""


class UnknownKeyError(TokenRefusedError):
    """A token signed with a key that is not among those known; it may have been published since."""


class PublicKey(NamedTuple):
    """A key for checks of signatures, and the algorithms that it may be used with."""

    key: Any
    algorithms: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of a document. `left_out`: why others are not."""

    by_id: Mapping[str, PublicKey] = field(default_factory=dict)
    without_id: tuple[PublicKey, ...] = ()
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.by_id) + len(self.without_id)

    def find(self, key_id: str | None, algorithm: str) -> PublicKey:
        """Return the key of a token. A token without `kid` needs the only key for its algorithm.

        Raises TokenRefusedError, UnknownKeyError.
        """
        if key_id is not None:
            found = self.by_id.get(key_id)
            if found is None:
                raise UnknownKeyError(f"the key {key_id[:100]!a} is not published")
            if algorithm not in found.algorithms:
                raise TokenRefusedError(f"the algorithm {algorithm[:20]!a} does not belong to the key {key_id[:100]!a}")
            return found
        suitable = [each for each in (*self.by_id.values(), *self.without_id) if algorithm in each.algorithms]
        if len(suitable) != 1:
            raise UnknownKeyError(f"{len(suitable)} published keys suit a {algorithm[:20]!a} token that names none")
        return suitable[0]


def read_keys(document: bytes) -> KeySet:
    """Read a JWKS document. Keys that cannot be used are left out. Raises ValueError if there are none."""
    try:
        entries = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('it is not a JWKS document, {"keys": [...]}') from None
    if not isinstance(entries, list):
        raise ValueError('its "keys" are not a list')  # noqa: TRY004
    by_id: dict[str, PublicKey] = {}
    without_id: list[PublicKey] = []
    left_out: list[str] = []
    for place, entry in enumerate(entries):
        try:
            if place >= MAX_KEYS:
                raise ValueError(f"more than {MAX_KEYS} keys")
            key_id, key = _read_key(entry)
        except ValueError as error:
            left_out.append(f"key {place + 1}: {error}")
            if place >= MAX_KEYS:
                break
            continue
        if key_id is None:
            without_id.append(key)
        elif by_id.setdefault(key_id, key) is not key:
            left_out.append(f"key {place + 1}: a second one of the same kid")
    if not by_id and not without_id:
        raise ValueError(f"it has no usable key ({'; '.join(left_out[:3]) or 'it is empty'})")
    return KeySet(by_id, tuple(without_id), tuple(left_out))


def _read_key(entry: Any) -> tuple[str | None, PublicKey]:
    """Return `kid` and key. Raises ValueError for one that must not be used."""
    if not isinstance(entry, dict):
        raise ValueError("it is not an object")  # noqa: TRY004  a fault of the document
    if entry.get("use", "sig") != "sig":
        raise ValueError("it is not for signatures")
    key_id, algorithm = entry.get("kid"), entry.get("alg")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str | None):
        raise ValueError("its kid or alg is not text")  # noqa: TRY004
    if entry.get("kty") not in {"RSA", "EC", "OKP"}:
        raise ValueError(f"its type is {str(entry.get('kty'))[:20]!a}, not RSA, EC or OKP")
    # the private part of a key that somebody published by mistake is of no use here
    public = {
        name: value for name, value in entry.items() if name not in {"d", "p", "q", "dp", "dq", "qi", "oth", "alg"}
    }
    try:
        key = jwt.PyJWK(public, algorithm=algorithm or _default_algorithm(public)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None
    algorithms = _algorithms(key)
    if algorithm is not None:
        algorithms &= {algorithm}
    if not algorithms:
        raise ValueError(f"no algorithm is left for it ({str(algorithm)[:20]!a})")
    return key_id, PublicKey(key, algorithms)


def _default_algorithm(entry: Mapping[str, Any]) -> str | None:
    return "RS256" if entry["kty"] == "RSA" else None  # PyJWT finds that of a curve


def _algorithms(key: object) -> frozenset[str]:
    """Return the algorithms of a key's type. Raises ValueError for a key that is too weak, or takes too long."""
    match key:
        case RSAPublicKey():
            if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
                raise ValueError(f"it has {key.key_size} bits, not {MIN_RSA_BITS} to {MAX_RSA_BITS}")
            return _RSA
        case EllipticCurvePublicKey():
            return _BY_CURVE.get(key.curve.name, frozenset())
        case Ed25519PublicKey():
            return frozenset({"EdDSA"})
        case _:
            return frozenset()


class VerifiedToken(NamedTuple):
    """Proof of a token: the user, the scopes, and the time in ms until which both hold."""

    subject: str
    scopes: frozenset[str]
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Claims that a token must have. `audiences` and `issuer` are not compared if they are empty or None."""

    audiences: Collection[str] = ()
    issuer: str | None = None
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30

    def verify(self, token: str, keys: KeySet, now_ms: int) -> VerifiedToken:
        """Check a token. Raises TokenRefusedError, UnknownKeyError."""
        claims = _signed_claims(token, keys)
        now_s, skew_s = now_ms / 1000, self.clock_skew_s
        ends_s = _time(claims, "exp")
        if ends_s is None:
            raise TokenRefusedError("it has no end (exp)")
        if now_s >= ends_s + skew_s:
            raise TokenRefusedError(f"it ended {now_s - ends_s:.0f} s ago (exp)")
        for name in ("nbf", "iat"):
            begins_s = _time(claims, name)
            if begins_s is not None and now_s < begins_s - skew_s:
                raise TokenRefusedError(f"it begins in {begins_s - now_s:.0f} s ({name}): compare the clocks")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefusedError(f"its issuer (iss) is {str(claims.get('iss'))[:100]!a}, not {self.issuer!r}")
        if self.audiences and not set(_texts(claims, "aud")) & set(self.audiences):
            raise TokenRefusedError(f"its audience (aud) is none of {', '.join(self.audiences)}")
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not subject or subject != subject.strip():  # " admin" is not admin
            raise TokenRefusedError(f"it names no user, or one with spaces around the name ({self.subject_claim})")
        scopes = frozenset(word for text in _texts(claims, self.scope_claim) for word in text.split())
        return VerifiedToken(subject, scopes, int((ends_s + skew_s) * 1000))


def _signed_claims(token: str, keys: KeySet) -> Mapping[str, Any]:
    if len(token) > MAX_TOKEN_LETTERS:
        raise TokenRefusedError(f"it has more than {MAX_TOKEN_LETTERS} letters")
    try:
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or "crit" in header:
            raise TokenRefusedError("its header names no algorithm, or asks for extensions (crit)")
        key = keys.find(key_id, algorithm)
        claims: Mapping[str, Any] = jwt.decode(token, key.key, algorithms=[algorithm], options=_UNCHECKED)
    except jwt.InvalidSignatureError:
        raise TokenRefusedError("its signature does not hold") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise TokenRefusedError(f"it cannot be read ({type(error).__name__})") from None
    return claims


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim that is a time in s. Raises TokenRefusedError."""
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value <= MAX_TIME_S:
        raise TokenRefusedError(f"its {name} is not a time")
    return float(value)


def _texts(claims: Mapping[str, Any], name: str) -> Iterable[str]:
    """Return a claim that is a text or a list of texts. Raises TokenRefusedError."""
    value = claims.get(name, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TokenRefusedError(f"its {name} is neither text nor a list of texts")
    return texts
