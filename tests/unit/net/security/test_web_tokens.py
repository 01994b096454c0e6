"""Tokens and published keys: which of them count, and attacks on their algorithms."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.net.security.web_tokens import (
    MAX_KEYS,
    KeySet,
    TokenRefusedError,
    TokenRules,
    UnknownKeyError,
    read_keys,
)
from tests.support.token_authority import ALGORITHMS, TokenAuthority, new_key, public_jwk

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RULES = TokenRules(audiences=("kafka",), issuer="https://id.example")
GOOD = {"sub": "alice", "aud": "kafka", "iss": "https://id.example", "iat": NOW_S, "exp": NOW_S + 60}
AUTHORITY = TokenAuthority()
for _algorithm in ALGORITHMS:
    AUTHORITY.add(_algorithm, _algorithm)
KEYS = read_keys(json.dumps(AUTHORITY.jwks()).encode())


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_a_published_key_names_its_user(algorithm: str) -> None:
    found = RULES.verify(AUTHORITY.token(algorithm, **GOOD, scope="read write"), KEYS, NOW_MS)
    assert found == ("alice", frozenset({"read", "write"}), NOW_MS + 90_000)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"exp": None}, "no end"),
        ({"exp": NOW_S - 30}, "ended 30 s ago"),
        ({"exp": str(NOW_S + 60)}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": 1e300}, "exp is not a time"),
        ({"exp": -1}, "exp is not a time"),
        ({"nbf": NOW_S + 40}, "begins in 40 s"),
        ({"iat": NOW_S + 40}, "begins in 40 s"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "neither text"),
        ({"aud": ["other", 1]}, "neither text"),
        ({"sub": None}, "names no user"),
        ({"sub": ["alice"]}, "names no user"),
        ({"sub": " "}, "names no user"),
        ({"sub": " alice"}, "spaces around"),
        ({"sub": "alice\u00a0"}, "spaces around"),
        ({"scope": 1}, "neither text"),
    ],
)
def test_claims_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    # PyJWT writes no such claims; their signature holds
    algorithm, key = AUTHORITY.keys["ES256"]
    token = jwt.PyJWS().encode(json.dumps(GOOD | changed).encode(), key, algorithm, headers={"kid": "ES256"})
    with pytest.raises(TokenRefusedError, match=said):
        RULES.verify(token, KEYS, NOW_MS)


def test_within_the_skew_of_clocks_a_token_counts() -> None:
    for changed in ({"exp": NOW_S - 29}, {"iat": NOW_S + 29}, {"aud": ["x", "kafka"]}):
        assert RULES.verify(AUTHORITY.token("ES256", **(GOOD | changed)), KEYS, NOW_MS).subject == "alice"


def test_claims_bear_other_names_if_that_is_set() -> None:
    rules = TokenRules(subject_claim="client_id", scope_claim="scp")
    token = AUTHORITY.token("ES256", client_id="bob", scp=["read"], exp=NOW_S + 1)
    assert rules.verify(token, KEYS, NOW_MS)[:2] == ("bob", {"read"})


def test_no_token_counts_without_a_signature_of_its_own_key() -> None:
    _, rsa_key = AUTHORITY.keys["RS256"]
    pem = rsa_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    good = AUTHORITY.token("ES256", **GOOD)
    header, claims, signature = good.split(".")
    hmac_signed = jwt.api_jws.PyJWS().encode(
        json.dumps(GOOD).encode(), base64.b64encode(pem), "HS256", headers={"kid": "RS256"}
    )
    forged = {
        "none": f"{part({'alg': 'none', 'kid': 'ES256'})}.{claims}.",
        "None": f"{part({'alg': 'None'})}.{claims}.",
        "no alg": f"{part({'kid': 'ES256'})}.{claims}.{signature}",
        "hmac by the public key": hmac_signed,
        "claims changed": f"{header}.{part(GOOD | {'sub': 'admin'})}.{signature}",
        "other key": jwt.encode(GOOD, new_key("ES256"), "ES256", headers={"kid": "ES256"}),
        "key of another type": jwt.encode(GOOD, rsa_key, "RS256", headers={"kid": "ES256"}),
        "algorithm that its key does not name": jwt.encode(GOOD, rsa_key, "RS512", headers={"kid": "RS256"}),
        "a key of its own": jwt.encode(
            GOOD, new_key("EdDSA"), "EdDSA", headers={"jwk": public_jwk("x", "EdDSA", new_key("EdDSA"))}
        ),
        "crit": jwt.encode(GOOD, AUTHORITY.keys["ES256"][1], "ES256", headers={"kid": "ES256", "crit": ["x"]}),
        "deep header": f"{base64.urlsafe_b64encode(b'[' * 40_000).decode()}.{claims}.{signature}",
        "long": good + "A" * 70_000,
        "kid of another type": f"{part({'alg': 'ES256', 'kid': ['ES256']})}.{claims}.{signature}",
        "nothing": "",
        "dots": "..",
    }
    for name, token in forged.items():
        with pytest.raises(TokenRefusedError):
            assert RULES.verify(token, KEYS, NOW_MS) is None, name


def test_a_key_that_is_not_known_is_told_apart() -> None:
    with pytest.raises(UnknownKeyError):
        RULES.verify(jwt.encode(GOOD, new_key("ES256"), "ES256", headers={"kid": "new"}), KEYS, NOW_MS)
    with pytest.raises(UnknownKeyError):
        RULES.verify(AUTHORITY.token("ES256", **GOOD), KeySet(), NOW_MS)


def test_a_token_without_kid_needs_the_only_key_of_its_algorithm() -> None:
    _, key = AUTHORITY.keys["ES256"]
    assert RULES.verify(jwt.encode(GOOD, key, "ES256"), KEYS, NOW_MS).subject == "alice"
    second = AUTHORITY.jwks()["keys"] + [public_jwk("second", "ES256", new_key("ES256"))]
    with pytest.raises(UnknownKeyError, match="2 published keys"):
        RULES.verify(jwt.encode(GOOD, key, "ES256"), read_keys(json.dumps({"keys": second}).encode()), NOW_MS)


def test_keys_that_must_not_be_used_are_left_out() -> None:
    good = public_jwk("good", "ES256", new_key("ES256"))
    weak = rsa.generate_private_key(65537, 1024)
    bad = [
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        {**public_jwk("hmac", "RS256", new_key("RS256")), "alg": "HS256"},
        public_jwk("weak", "RS256", weak),
        {**good, "kid": "sealing", "use": "enc"},
        {**good, "kid": "broken", "x": "AAAA"},
        {**good, "kid": 7},
        "text",
        good,  # again
    ]
    found = read_keys(json.dumps({"keys": [good, *bad]}).encode())
    assert set(found.by_id) == {"good"}
    assert len(found.left_out) == len(bad)
    many = [{**good, "kid": str(number)} for number in range(MAX_KEYS + 50)]
    assert len(read_keys(json.dumps({"keys": many}).encode())) == MAX_KEYS


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"[" * 100_000, b"\xff", b"7"]
)
def test_documents_without_keys_are_errors(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"JWKS|list|usable"):
        read_keys(document)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="eyJhbGciOi.AZaz09-_=\x01\n", max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_no_text_breaks_the_check(noise: str, place: int, letter: int) -> None:
    good = AUTHORITY.token("EdDSA", **GOOD)
    place %= len(good)
    for token in (noise, good[:place] + noise + good[place:], good[:place] + chr(letter) + good[place + 1 :]):
        try:
            assert RULES.verify(token, KEYS, NOW_MS).subject == "alice"
        except TokenRefusedError:
            continue
