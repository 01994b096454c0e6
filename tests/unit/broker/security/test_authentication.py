"""Authentication of connections: what a stranger may send, how it becomes known, and for how long."""

import base64
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from pipeline.broker.security.sasl.mechanism import SaslMechanism, SaslRefusedError
from pipeline.broker.security.sasl.plain import PlainMechanism
from pipeline.broker.security.sasl.scram import MAX_MESSAGE_BYTES
from pipeline.coordination.scram_znodes import ScramHash, ScramShape
from pipeline.credentials import Secret
from pipeline.errors import AuthenticationError, NetworkError
from pipeline.model import HostPort
from pipeline.net import server as server_module
from pipeline.net.connection_pool import open_connection_pool
from pipeline.net.dialing import Dialer, Exchange
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.sasl_server import PASSWORD, scram, served, who


@pytest.mark.parametrize("kind", ScramHash)
def test_scram_proves_both_ends_to_each_other(kind: ScramHash) -> None:
    client, exchange = ScramClient([kind.value], "alice", PASSWORD), scram(kind)
    first = exchange.step(client.get_client_first().encode())
    assert first.proof is None
    client.set_server_first(first.token.decode())
    last = exchange.step(client.get_client_final().encode())
    client.set_server_final(last.token.decode())
    assert last.proof is not None
    assert last.proof.user == "alice"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", PASSWORD), ("alice", " ")])
def test_scram_refuses_wrong_passwords_and_unknown_users_alike(user: str, password: str) -> None:
    client, exchange = ScramClient(["SCRAM-SHA-256"], user, password), scram()
    client.set_server_first(exchange.step(client.get_client_first().encode()).token.decode())
    with pytest.raises(SaslRefusedError, match="invalid credentials"):
        exchange.step(client.get_client_final().encode())


def test_an_unknown_user_has_the_same_salt_each_time_and_not_that_of_another() -> None:
    def salt(user: str) -> str:
        client = ScramClient(["SCRAM-SHA-256"], user, PASSWORD)
        parts = scram().step(client.get_client_first().encode()).token.decode().split(",")
        return next(part for part in parts if part.startswith("s="))

    assert salt("bob") == salt("bob") != salt("carol")


@pytest.mark.parametrize("letters", ["a", "\u0301\u0316", "\ufdfa", "=2C"])
@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES - 20, 500_000])
def test_no_name_takes_scram_for_long(letters: str, size: int) -> None:
    """Half a megabyte of combining marks took a minute, in which the broker did nothing else."""
    name = (b"a" + letters.encode() * (size // len(letters.encode())))[:size].decode(errors="ignore")
    begun = time.process_time()
    with suppress(SaslRefusedError):
        scram().step(f"n,,n={name},r=nonce".encode())
    assert time.process_time() - begun < 0.3


def test_an_unknown_user_looks_like_a_known_one_and_goes_on_looking_so_when_others_come() -> None:
    def shown(user: str, *shapes: ScramShape) -> tuple[int, int]:
        client = ScramClient(["SCRAM-SHA-256"], user, PASSWORD)
        text = scram(shapes=shapes).step(client.get_client_first().encode()).token.decode()
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        return int(parts["i"]), len(base64.b64decode(parts["s"]))

    few, many = ScramShape(4096, 26), ScramShape(16384, 12)
    assert shown("nobody", many) == many
    assert {shown(f"nobody-{number}", few, many) for number in range(50)} == {few, many}
    kept = [user for user in map("nobody-{}".format, range(50)) if shown(user, few, many) == few]
    assert all(shown(user, few) == few for user in kept)
    assert sum(shown(user, few, many, ScramShape(8192, 20)) == few for user in kept) > len(kept) / 3


def test_a_replayed_final_message_is_refused_by_another_exchange() -> None:
    client, exchange = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD), scram()
    first = client.get_client_first().encode()
    client.set_server_first(exchange.step(first).token.decode())
    final = client.get_client_final().encode()
    assert exchange.step(final).proof is not None
    other = scram(nonce="another-nonce")
    other.step(first)
    with pytest.raises(SaslRefusedError):
        other.step(final)
    with pytest.raises(SaslRefusedError):
        exchange.step(final)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"n,,n=alice,r=x", b"c=biws,r=xserver-nonce,p=eA=="])))
)
def test_no_tokens_break_a_mechanism_or_prove_a_user(tokens: list[bytes]) -> None:
    mechanisms: list[SaslMechanism] = [scram(), PlainMechanism({"alice": Secret(PASSWORD)})]
    for mechanism in mechanisms:
        for token in tokens:
            try:
                assert mechanism.step(token).proof is None
            except SaslRefusedError:
                break


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0alice\0pencil", "alice"),
        (b"alice\0alice\0pencil", "alice"),
        (b"bob\0alice\0pencil", None),
        (b"\0alice\0pencil2", None),
        (b"\0bob\0pencil", None),
        (b"\0bob\0", None),
        (b"\0\0", None),
        (b"\0alice", None),
        (b"\0alice\0pencil\0", None),
        (b"\xff", None),
        (b"\0bob\0\\0", None),
    ],
)
def test_plain(token: bytes, user: str | None) -> None:
    mechanism = PlainMechanism({"alice": Secret(PASSWORD)})
    if user is None:
        with pytest.raises(SaslRefusedError):
            mechanism.step(token)
    else:
        proof = mechanism.step(token).proof
        assert proof is not None
        assert proof.user == user


# Over connections


@pytest.fixture(autouse=True)
def strangers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests wait for must come by itself, not by the end of a stranger's time."""
    monkeypatch.setattr(server_module, "STRANGER_S", 600)


def logs_in(*tokens: bytes, mechanism: str = "PLAIN") -> Callable[[HostPort, Exchange], Any]:
    async def authenticate(_address: HostPort, exchange: Exchange) -> float | None:
        handshake: Any = await exchange(SaslHandshakeRequest(mechanism=mechanism))
        if handshake.error_code:
            raise AuthenticationError(f"{handshake.error_code}: {', '.join(handshake.mechanisms)}")
        answer: Any = None
        for token in tokens:
            answer = await exchange(SaslAuthenticateRequest(auth_bytes=token))
            if answer.error_code:
                raise AuthenticationError(f"{answer.error_code}: {answer.error_message}")
        return answer.session_lifetime_ms / 1000 or None if answer else None

    return authenticate


ALICE = b"\0alice\0pencil"


def logged_in(*tokens: bytes, **options: Any) -> Any:
    return open_connection_pool("test", Dialer(authenticate=logs_in(*tokens or (ALICE,), **options)))


async def test_a_client_that_is_known_is_served_by_its_name() -> None:
    async with served() as sasl, logged_in() as pool:
        assert await who(pool, sasl) == "alice"
        assert sasl.counts.successes["CLIENT"] == 1


async def test_a_stranger_is_served_nothing_but_the_way_in() -> None:
    async with served() as sasl, open_connection_pool("test") as pool:
        with pytest.raises(NetworkError):
            await who(pool, sasl)
        assert sasl.server.statistics.broken == 1


@pytest.mark.parametrize("size", [524_289, 1 << 30, -1])
async def test_a_stranger_sends_no_large_request(size: int) -> None:
    async with served() as sasl, await trio.open_tcp_stream(sasl.address.host, sasl.address.port) as stream:
        await stream.send_all(struct.pack(">i", size) + bytes(100))
        with trio.fail_after(60):
            assert await stream.receive_some() == b""


async def test_a_client_with_a_wrong_password_is_answered_after_a_pause_and_leaves() -> None:
    async with served(failure_delay_s=0.3) as sasl, logged_in(b"\0alice\0wrong") as pool:
        begun = trio.current_time()
        with pytest.raises(AuthenticationError, match="Invalid username or password"):
            await who(pool, sasl)
        assert trio.current_time() - begun > 0.3
        assert sasl.counts.failures["CLIENT"] == 1
        assert not sasl.counts.delayed
        with trio.fail_after(60):
            while sasl.server.statistics.open_connections:
                await trio.sleep(0.01)


async def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are() -> None:
    async with served() as sasl, logged_in(mechanism="GSSAPI") as pool:
        with pytest.raises(
            AuthenticationError, match=f"{ErrorCode.UNSUPPORTED_SASL_MECHANISM}: PLAIN, SCRAM-SHA-256, OAUTH"
        ):
            await who(pool, sasl)


async def test_tokens_may_come_bare_after_a_handshake_of_version_0() -> None:
    async with served() as sasl, await trio.open_tcp_stream(sasl.address.host, sasl.address.port) as stream:

        async def ask(body: bytes) -> bytes:
            await stream.send_all(struct.pack(">i", len(body)) + body)
            received = b""
            with trio.fail_after(60):
                while len(received) < 4 or len(received) < 4 + struct.unpack(">i", received[:4])[0]:
                    some = await stream.receive_some()
                    assert some, received
                    received += some
            return received[4:]

        handshake = await ask(struct.pack(">hhih", 17, 0, 1, -1) + struct.pack(">h", 5) + b"PLAIN")
        assert handshake[4:6] == b"\0\0"
        assert await ask(ALICE) == b""
        metadata = await ask(struct.pack(">hhih", 3, 2, 2, -1) + struct.pack(">i", 0))
        assert b"alice" in metadata


@pytest.mark.parametrize("tokens", [(ALICE, ALICE), ()])
async def test_tokens_without_a_handshake_end_the_connection(tokens: tuple[bytes, ...]) -> None:
    async def authenticate(_address: HostPort, exchange: Exchange) -> None:
        if tokens:
            await exchange(SaslHandshakeRequest(mechanism="PLAIN"))
        for token in tokens or (ALICE,):
            answer: Any = await exchange(SaslAuthenticateRequest(auth_bytes=token))
            if answer.error_code:
                raise AuthenticationError(str(answer.error_code))

    async with served() as sasl, open_connection_pool("test", Dialer(authenticate=authenticate)) as pool:
        with pytest.raises(AuthenticationError, match=str(int(ErrorCode.ILLEGAL_SASL_STATE))):
            await who(pool, sasl)


async def test_an_authentication_is_renewed_before_it_ends_on_the_same_connection() -> None:
    async with served(max_session_ms=1000) as sasl, logged_in() as pool:
        with trio.fail_after(60):
            while sasl.counts.renewals["CLIENT"] < 2:
                assert await who(pool, sasl) == "alice"
                await trio.sleep(0.01)
        assert sasl.server.statistics.accepted == 1
        assert not sasl.counts.expired


async def test_an_authentication_that_was_not_renewed_ends_the_connection() -> None:
    async def forget(address: HostPort, exchange: Exchange) -> None:
        await logs_in(ALICE)(address, exchange)

    async with served(max_session_ms=1000) as sasl, open_connection_pool("t", Dialer(authenticate=forget)) as pool:
        assert await who(pool, sasl) == "alice"
        sasl.later_s[0] += 1.001
        with pytest.raises(NetworkError):
            await who(pool, sasl)
        assert sasl.counts.expired["CLIENT"] == 1


async def test_a_renewal_as_another_user_is_refused() -> None:
    logins = iter([ALICE, b"\0bob\0bobs"])

    async def change(address: HostPort, exchange: Exchange) -> float | None:
        await logs_in(next(logins))(address, exchange)
        return 0.0

    async with served() as sasl, open_connection_pool("test", Dialer(authenticate=change)) as pool:
        assert await who(pool, sasl) == "alice"
        with pytest.raises(AuthenticationError, match="Cannot change principals"):
            await who(pool, sasl)


async def test_a_stranger_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STRANGER_S", 0.3)
    async with served() as sasl, logged_in() as pool:
        assert await who(pool, sasl) == "alice"
        async with await trio.open_tcp_stream(sasl.address.host, sasl.address.port) as stream:
            with trio.fail_after(60):
                assert await stream.receive_some() == b""
        assert sasl.server.statistics.refused_strangers == 1
        assert await who(pool, sasl) == "alice"
        assert sasl.server.statistics.accepted == 2


async def test_refusals_that_wait_are_bounded_by_address() -> None:
    async with served(failure_delay_s=30.0) as sasl, trio.open_nursery() as nursery:

        async def fail(number: int) -> None:
            async with logged_in(b"\0alice\0wrong") as pool:
                with pytest.raises((AuthenticationError, NetworkError)):
                    await who(pool, sasl, lane=str(number))

        for number in range(130):
            nursery.start_soon(fail, number)
        with trio.fail_after(60):
            while sasl.counts.failures["CLIENT"] < 130:
                await trio.sleep(0.01)
        assert max(sasl.counts.delayed.values()) <= 100
        nursery.cancel_scope.cancel()
