"""SCRAM against downgrade, replay and timing: what a man in the middle or a guesser may try."""

import base64
import hashlib
import hmac
import statistics
import time
from collections.abc import Callable

import pytest
from scramp import ScramClient

from pipeline.broker.security.sasl.mechanism import SaslRefusedError
from pipeline.broker.security.sasl.scram import ScramExchange
from pipeline.coordination.scram_znodes import ScramCredential, ScramHash, salted_password
from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError
from pipeline.net.security.sasl_client import MAX_ITERATIONS, SaslLogin

PASSWORD = "pencil"
SALT = b"salt of 15 byte"
ITERATIONS = 4096
NONCE = "server-nonce"


def credential(kind: ScramHash) -> ScramCredential:
    return ScramCredential.of_salted_password(kind, salted_password(kind, PASSWORD, SALT, ITERATIONS), SALT, ITERATIONS)


CREDENTIALS = {kind: credential(kind) for kind in ScramHash}


def find(user: str, kind: ScramHash) -> ScramCredential | None:
    return CREDENTIALS[kind] if user == "alice" else None


def exchange(kind: ScramHash = ScramHash.SHA_256, nonce: str = NONCE) -> ScramExchange:
    return ScramExchange(kind, find, b"secret of the broker", nonce)


def final_message(server_first: str, first_bare: str, binding: str, nonce: str | None = None) -> bytes:
    """The client's final message, whose proof is right for what it says."""
    nonce = nonce or server_first.split(",", maxsplit=1)[0].removeprefix("r=")
    salted = salted_password(ScramHash.SHA_256, PASSWORD, SALT, ITERATIONS)
    key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c={base64.b64encode(binding.encode()).decode()},r={nonce}"
    signed = f"{first_bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def log_in(header: str, *, binding: str | None = None, nonce: str | None = None) -> object:
    made = exchange()
    first_bare = "n=alice,r=client-nonce"
    server_first = made.step(f"{header}{first_bare}".encode()).token.decode()
    return made.step(final_message(server_first, first_bare, header if binding is None else binding, nonce)).proof


def test_the_right_messages_count() -> None:
    assert log_in("n,,") is not None


@pytest.mark.parametrize("header", ["p=tls-unique,,", "p=tls-exporter,,", "x,,", "", ",,", "n", "n,a=bob,"])
def test_headers_that_ask_for_what_is_not_there_are_refused(header: str) -> None:
    with pytest.raises(SaslRefusedError):
        log_in(header)


@pytest.mark.parametrize("binding", ["y,,", "p=tls-unique,,", "", "n,a=bob,"])
def test_a_binding_other_than_the_first_message_had_is_a_downgrade(binding: str) -> None:
    with pytest.raises(SaslRefusedError):
        log_in("n,,", binding=binding)


@pytest.mark.parametrize(
    "nonce", ["client-nonce", NONCE, "client-nonce" + NONCE + "x", "client-nonceclient-nonce" + NONCE]
)
def test_the_nonce_must_be_the_whole_one_that_the_server_sent(nonce: str) -> None:
    """CVE-2024-56128: a server that compares its end alone takes a replay; librdkafka before 2.6.1 relied on that."""
    with pytest.raises(SaslRefusedError):
        log_in("n,,", nonce=nonce)


def test_a_conversation_that_was_listened_to_cannot_be_sent_again() -> None:
    client, first_time = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD), exchange()
    first = client.get_client_first().encode()
    client.set_server_first(first_time.step(first).token.decode())
    final = client.get_client_final().encode()
    assert first_time.step(final).proof is not None
    for nonce in ("other-nonce", NONCE + "x", ""):
        again = exchange(nonce=nonce or "n")
        again.step(first)
        with pytest.raises(SaslRefusedError):
            again.step(final)


def test_a_proof_of_one_hash_is_none_of_the_other() -> None:
    """A user with credentials of both hashes is not known by a weaker one than the client was asked for."""
    client, strong = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD), exchange(ScramHash.SHA_512)
    client.set_server_first(strong.step(client.get_client_first().encode()).token.decode())
    with pytest.raises(SaslRefusedError):
        strong.step(client.get_client_final().encode())


@pytest.mark.parametrize("iterations", ["1", "4095", "0", "-1", "", str(MAX_ITERATIONS + 1), "9" * 20])
def test_our_client_leaves_a_server_that_wants_little_or_endless_hashing(iterations: str) -> None:
    tokens = SaslLogin(mechanism="SCRAM-SHA-256", user="alice", password=Secret(PASSWORD)).begin()
    nonce = tokens.first().decode().partition("r=")[2]
    salt = base64.b64encode(SALT).decode()
    began = time.perf_counter()
    with pytest.raises(AuthenticationError):
        tokens.next(f"r={nonce}server,s={salt},i={iterations}".encode())
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("nonce", ["{}", "x{}server", "server"])
def test_our_client_leaves_a_server_that_adds_no_nonce_of_its_own(nonce: str) -> None:
    tokens = SaslLogin(mechanism="SCRAM-SHA-256", user="alice", password=Secret(PASSWORD)).begin()
    own = tokens.first().decode().partition("r=")[2]
    answer = f"r={nonce.format(own)},s={base64.b64encode(SALT).decode()},i=4096".encode()
    with pytest.raises(AuthenticationError):
        assert tokens.next(answer) is None


def test_our_client_leaves_a_server_that_sends_more_than_a_message() -> None:
    tokens = SaslLogin(mechanism="SCRAM-SHA-256", user="alice", password=Secret("pencil")).begin()
    nonce = tokens.first().decode().rpartition("r=")[2]
    with pytest.raises(AuthenticationError, match="bytes where"):
        tokens.next(f"r={nonce}{'x' * 100_000},s=AAAAAAAAAAAAAAAAAAAAAA==,i=4096".encode())


def test_unknown_users_take_as_long_as_known_ones() -> None:
    """Medians of many interleaved tries lie within a fifth of each other; a busy machine may need more than one go."""

    def taken_s(user: str) -> float:
        client, made = ScramClient(["SCRAM-SHA-256"], user, "wrong"), exchange()
        first = client.get_client_first().encode()
        began = time.perf_counter()
        answer = made.step(first)
        middle = time.perf_counter()
        client.set_server_first(answer.token.decode())
        final = client.get_client_final().encode()
        resumed = time.perf_counter()
        with pytest.raises(SaslRefusedError):
            made.step(final)
        return time.perf_counter() - resumed + middle - began

    assert any(_is_alike(taken_s) for _ in range(5))


def _is_alike(taken_s: Callable[[str], float]) -> bool:
    found: dict[str, list[float]] = {"alice": [], "bob": []}
    for _ in range(100):
        for user, times in found.items():
            times.append(taken_s(user))
    known, unknown = (statistics.median(times) for times in found.values())
    return abs(known - unknown) < max(known, unknown) / 5
