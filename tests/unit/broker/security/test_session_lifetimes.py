"""Lifetimes of SASL sessions (KIP-368): the wall clock is set, and clients die while they renew."""

from typing import Any

import pytest
import trio
from scramp import ScramClient

from pipeline.errors import AuthenticationError, NetworkError
from pipeline.model import HostPort
from pipeline.net.connection_pool import open_connection_pool
from pipeline.net.dialing import Dialer, Exchange
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.sasl_server import PASSWORD, Sasl, served, who

HOUR_S, DAY_S = 3600, 86_400
JUMPS_S = (HOUR_S, -HOUR_S, DAY_S, -DAY_S)
LIFETIME_S = 600


class Scram:
    """Logs in by SCRAM whenever that is asked for, and notes the lifetimes that the server names."""

    def __init__(self) -> None:
        self.lifetimes_s: list[float] = []

    async def __call__(self, _address: HostPort, exchange: Exchange) -> float:
        client = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
        await exchange(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        first: Any = await exchange(SaslAuthenticateRequest(auth_bytes=client.get_client_first().encode()))
        client.set_server_first(first.auth_bytes.decode())
        last: Any = await exchange(SaslAuthenticateRequest(auth_bytes=client.get_client_final().encode()))
        if last.error_code:
            raise AuthenticationError(last.error_message)
        self.lifetimes_s.append(last.session_lifetime_ms / 1000)
        return 0.0  # renews before the next request


class Token:
    """Logs in with a token that is issued when that is asked for, and ends ten minutes later by the clock of `sasl`."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self.lifetimes_s: list[float] = []

    async def __call__(self, _address: HostPort, exchange: Exchange) -> float:
        token = f"alice.{self._sasl.now_ms[0] + LIFETIME_S * 1000}"
        await exchange(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer: Any = await exchange(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            raise AuthenticationError(answer.error_message)
        self.lifetimes_s.append(answer.session_lifetime_ms / 1000)
        return 0.0


def once(login: Scram | Token) -> Dialer:
    """Have a client log in, and never renew."""

    async def authenticate(address: HostPort, exchange: Exchange) -> None:
        await login(address, exchange)

    return Dialer(authenticate=authenticate)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("jump_s", JUMPS_S)
async def test_a_wall_clock_that_is_set_neither_ends_a_session_nor_makes_it_longer(mechanism: str, jump_s: int) -> None:
    by_scram = mechanism == "SCRAM-SHA-256"
    async with served(max_session_ms=LIFETIME_S * 1000 if by_scram else 0) as sasl:
        login = Scram() if by_scram else Token(sasl)
        async with open_connection_pool("test", once(login)) as pool:
            assert await who(pool, sasl) == "alice"
            assert LIFETIME_S - 60 < login.lifetimes_s[0] <= LIFETIME_S
            sasl.now_ms[0] += jump_s * 1000
            sasl.later_s[0] += LIFETIME_S - 120
            assert await who(pool, sasl) == "alice"
            sasl.later_s[0] += 121
            with pytest.raises(NetworkError):
                await who(pool, sasl)
        assert sasl.counts.expired["CLIENT"] == 1


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("jump_s", JUMPS_S)
async def test_a_client_that_renews_stays_whatever_the_wall_clock_is_set_to(mechanism: str, jump_s: int) -> None:
    by_scram = mechanism == "SCRAM-SHA-256"
    async with served(max_session_ms=LIFETIME_S * 1000 if by_scram else 0) as sasl:
        login = Scram() if by_scram else Token(sasl)
        async with open_connection_pool("test", Dialer(authenticate=login)) as pool:
            for _ in range(3):
                assert await who(pool, sasl) == "alice"
                sasl.now_ms[0] += jump_s * 1000
                sasl.later_s[0] += LIFETIME_S / 3
            assert await who(pool, sasl) == "alice"
        assert sasl.server.statistics.accepted == 1
        assert sasl.counts.renewals["CLIENT"] == 3
        assert all(LIFETIME_S - 60 < each <= LIFETIME_S for each in login.lifetimes_s)
        assert not sasl.counts.expired


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("is_late", [True, False])
async def test_a_client_that_dies_in_a_renewal_leaves_nothing_behind(steps: int, is_late: bool) -> None:
    """It dies after `steps` of its messages; `is_late`: it dies while the answer to a wrong last one waits."""
    renewing = False

    async def authenticate(address: HostPort, exchange: Exchange) -> float:
        if not renewing:
            return await Scram()(address, exchange)
        client = ScramClient(["SCRAM-SHA-256"], "alice", "wrong")
        await exchange(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        if steps:
            first: Any = await exchange(SaslAuthenticateRequest(auth_bytes=client.get_client_first().encode()))
            client.set_server_first(first.auth_bytes.decode())
            if is_late:
                await exchange(SaslAuthenticateRequest(auth_bytes=client.get_client_final().encode()))
        reached.set()
        await trio.sleep_forever()
        return 0.0

    reached = trio.Event()
    async with served(failure_delay_s=0.3, max_session_ms=LIFETIME_S * 1000) as sasl:
        async with (
            open_connection_pool("test", Dialer(authenticate=authenticate)) as pool,
            trio.open_nursery() as nursery,
        ):
            assert await who(pool, sasl) == "alice"
            renewing = True
            nursery.start_soon(who, pool, sasl)
            with trio.fail_after(60):
                while not (reached.is_set() or sasl.counts.failures):
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            while sasl.server.statistics.open_connections or sasl.counts.delayed:
                await trio.sleep(0.001)
        renewing = False
        async with open_connection_pool("test", Dialer(authenticate=authenticate)) as pool:
            assert await who(pool, sasl) == "alice"
        assert sasl.counts.successes["CLIENT"] == 2
        assert not (sasl.counts.renewals["CLIENT"] or sasl.counts.expired["CLIENT"])
