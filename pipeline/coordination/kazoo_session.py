"""The kazoo client of a session, with its threads, and its replacement by a new client when it cannot go on.

Invariants:

- Kazoo's threads never touch our state: they post function calls to the loop.
- A client whose connection thread died of a broken answer is replaced by a new client with a new session. So is a
  client that servers refuse: restored from a backup, they lack transactions that the client has seen.
- Requests are sent on authenticated connections only: a session counts as connected once servers took its password.
- A client whose password servers refuse tries again every second, with a new session: the password may be set right.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SessionClosedRequireSaslError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState

from pipeline.coordination.interface import SessionId
from pipeline.coordination.kazoo_handler import TlsHandler
from pipeline.coordination.session import SessionHistory
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.diagnostics import get_logger

CLOSE_TIMEOUT_S = 5.0
REPLACE_AFTER_S = 1.0
LOOK_FOR_OLDER_S = 0.5
"""Interval at which a disconnected client checks if servers hold older data than it has seen, and so refuse it."""
LOOK_TIMEOUT_S = 2.0
CUT_LOGIN = "the connection broke during the login; older servers break it if the password is wrong"
RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

logger = get_logger(__name__)
_KAZOO_LOG = logging.getLogger("kazoo.client")
_KAZOO_LOG.setLevel(logging.CRITICAL)  # our own events report the same


class KazooSession:
    """The session of a `ZooKeeper`. `on_lost` is called in the loop when servers may have dropped their watches.

    Raises ValueError for invalid hosts.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        on_lost: Callable[[], None],
        security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
    ) -> None:
        self.history = SessionHistory()
        self.is_closed = False
        self.is_refused = False
        """True if a server refused the password, and none has taken it since."""
        self.fault: str | None = None
        """Why the newest connection failed, if that is known; None once connected."""
        self._security = security
        self._hosts = hosts
        self._session_timeout_ms = session_timeout_ms
        self._on_lost = on_lost
        self._token = trio.lowlevel.current_trio_token()
        self.kazoo = self._new_kazoo()

    async def wait_opened(self) -> None:
        """Return once requests can be sent, or a server refused the password."""
        while not (self.history.is_connected or self.is_refused):
            await self.history.changed.wait()

    async def close(self) -> None:
        """End the session. Returns once a server has answered, or after CLOSE_TIMEOUT_S."""
        self.is_closed = True
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
            await trio.to_thread.run_sync(_dispose, self.kazoo, abandon_on_cancel=True)

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, from any thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *arguments)

    def _open_kazoo(self, **settings: Any) -> KazooClient:
        """Return a client with our credentials, which has not been started."""
        security = self._security
        if security.is_encrypted:
            settings["handler"] = TlsHandler(security, lambda fault: self.post(self._note_fault, fault))
        if security.username is not None:
            user, password = security.login
            if security.scheme == "sasl":
                settings["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
            else:
                settings["auth_data"] = [("digest", f"{user}:{password}")]
        kazoo = KazooClient(self._hosts, self._session_timeout_ms / 1000, logger=_KAZOO_LOG, **settings)
        connect = kazoo._connection._connect

        def connect_or_give_up(*arguments: Any) -> Any:
            try:
                return connect(*arguments)
            except SessionClosedRequireSaslError as error:
                raise AuthFailedError from error  # kazoo's thread would die of the other
            except AuthFailedError as error:
                if isinstance(error.__cause__, ConnectionDropped):  # a server that goes away refuses nothing
                    self.post(self._note_fault, CUT_LOGIN)
                    raise error.__cause__ from None
                raise

        if security.username is not None:
            kazoo._connection._connect = connect_or_give_up
        return kazoo

    def _new_kazoo(self) -> KazooClient:
        kazoo = self._open_kazoo(connection_retry=dict(RECONNECT))
        is_authenticating = [False]

        def report(state: str) -> None:
            client_id = kazoo.client_id
            is_dead = kazoo.client_state == KeeperState.CLOSED
            session = client_id[0] if client_id else None
            self.post(self._session_changed, kazoo, state, session, is_dead, granted_ms[0])

        def on_state(state: str) -> None:
            if not (is_authenticating[0] and state == KazooState.CONNECTED):
                report(state)

        invoke, granted_ms = kazoo._connection._invoke, [self._session_timeout_ms]

        def note_timeout(request_timeout_s: float, request: Any, *arguments: Any, **named: Any) -> Any:
            answer = invoke(request_timeout_s, request, *arguments, **named)
            if isinstance(request, Connect):
                granted_ms[0] = answer[0].time_out
            return answer

        connect = kazoo._connection._connect

        def connect_and_authenticate(*arguments: Any) -> Any:
            is_authenticating[0] = True
            try:
                answer = connect(*arguments)
            except AuthFailedError:
                self.post(self._login_failed, kazoo)
                raise
            finally:
                is_authenticating[0] = False
            report(KazooState.CONNECTED)
            return answer

        kazoo._connection._invoke = note_timeout  # it only connects, and kazoo does not keep what it returns
        if self._security.username is not None:
            kazoo._connection._connect = connect_and_authenticate
        kazoo.add_listener(on_state)
        return kazoo

    def _note_fault(self, fault: str) -> None:
        self.fault = fault

    def _login_failed(self, kazoo: KazooClient) -> None:
        """Replace a client whose password was refused, which kazoo gives up."""
        if kazoo is not self.kazoo or self.is_closed:
            return
        self.is_refused = True
        self.fault = f"it refuses {self._security}: compare zookeeper.auth.password with ZooKeeper's list of users"
        logger.error("zookeeper_refuses_login", servers=self._hosts, client=str(self._security))
        self.history.changed.notify()
        trio.lowlevel.spawn_system_task(self._replace, kazoo)

    def _session_changed(
        self, kazoo: KazooClient, state: str, session_id: int | None, is_dead: bool, timeout_ms: int
    ) -> None:
        if kazoo is not self.kazoo or self.is_closed:
            return
        if state == KazooState.CONNECTED and session_id is not None:
            self.is_refused, self.fault = False, None
            self.history.timeout_ms = timeout_ms
            self.history.connected(SessionId(session_id))
        elif state == KazooState.SUSPENDED:
            self.history.suspended()
            trio.lowlevel.spawn_system_task(self._escape_refusals, kazoo, self.history.connection_count)
        elif state == KazooState.LOST:
            self.history.expired()
        if state != KazooState.CONNECTED:
            self._on_lost()
        current = self.history.current
        if current is not None:
            log = logger.info if state == KazooState.CONNECTED else logger.warning
            log(
                "zookeeper_session", state=current.state.value, session=f"0x{current.session_id:x}", servers=self._hosts
            )
        if is_dead:
            trio.lowlevel.spawn_system_task(self._replace, kazoo)

    async def _replace(self, dead: KazooClient) -> None:
        """Replace a client whose thread has ended by itself."""
        await trio.to_thread.run_sync(_dispose, dead, abandon_on_cancel=True)
        await trio.sleep(REPLACE_AFTER_S)
        if not self.is_closed:
            self._begin_anew()

    def _begin_anew(self) -> None:
        logger.warning("zookeeper_client_replaced", servers=self._hosts)
        self.kazoo = self._new_kazoo()
        self.kazoo.start_async()
        self._on_lost()

    async def _escape_refusals(self, kazoo: KazooClient, connection: int) -> None:
        """Begin a new session if servers refuse the present one, which saw newer transactions. `connection` broke.

        The new session must begin before the sessions in the backup time out. Otherwise a broker that saw nothing
        newer, and is accepted, would find all others dead, and elect replicas that lack acknowledged records.
        """

        def is_over() -> bool:
            return self.is_closed or (kazoo, connection) != (self.kazoo, self.history.connection_count)

        is_refused = False
        while not is_refused:
            await trio.sleep(LOOK_FOR_OLDER_S)
            if is_over():
                return
            newest = await trio.to_thread.run_sync(self._newest_transaction, abandon_on_cancel=True)
            is_refused = newest is not None and newest < kazoo.last_zxid
        if is_over():
            return
        logger.warning("zookeeper_refuses_session", servers=self._hosts, reason="its data are older")
        self.history.expired()
        self._begin_anew()
        await trio.to_thread.run_sync(_dispose, kazoo, abandon_on_cancel=True)

    def _newest_transaction(self) -> int | None:
        """Return ZooKeeper's newest transaction number; None if no server accepts a new client. Blocks for seconds."""
        probe = self._open_kazoo()
        try:
            if not probe.start_async().wait(LOOK_TIMEOUT_S):
                return None
            probe.sync_async("/").get(timeout=LOOK_TIMEOUT_S)  # a server may lag behind the others
        except Exception:  # kazoo raises bare Exceptions, too, which would end the process
            return None
        else:
            return probe.last_zxid
        finally:
            _dispose(probe)


def _dispose(kazoo: KazooClient) -> None:
    """End the session, its threads and sockets. Blocks until the server has answered or cannot be reached."""
    try:
        kazoo.stop()
        kazoo.close()
    except Exception as error:  # kazoo raises bare Exceptions here, too; the session then ends by its timeout
        logger.warning("zookeeper_close_failed", error=repr(error))
