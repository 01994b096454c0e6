"""Runs a ZooKeeper server from PySpark's jars: for a single machine, for tests, and for small clusters.

Invariants: the directory holds all state (`data/`, `zoo.cfg`, `zookeeper.log`), from which the next start continues. A
port that was chosen stays. `stop` returns only after the process has been reaped. Passwords of users are in a file that
only the user of the process can read, never on its command line.
"""

import importlib.util
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from pipeline.credentials import Secret
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import HostPort
from pipeline.processes import ChildProcess, free_port, is_port_free, start_process

MINIMUM_JAVA = 17
TICK_MS = 500
INIT_LIMIT_TICKS = 20
SYNC_LIMIT_TICKS = 10
MAX_SESSION_TIMEOUT_MS = 60_000
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 8.0
PROBE_TIMEOUT_S = 1.0
LOG_FILE_KB = 4096
INSTALL_JAVA = (
    f"install Java {MINIMUM_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one"
)
JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*")
"""The jars that the server needs: with all of PySpark's 300 the start takes twice as long."""

LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, else of PATH. Raises ConfigurationError if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise ConfigurationError("java", f"none in PATH and JAVA_HOME is not set: {INSTALL_JAVA}")
    try:
        answer = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        source = "JAVA_HOME" if home else "PATH"
        raise ConfigurationError("java", f"{found} (from {source}) does not run: {INSTALL_JAVA}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < MINIMUM_JAVA:
        first_line = (answer.stderr or answer.stdout).partition("\n")[0]
        raise ConfigurationError("java", f"{found} is {first_line!r}: {INSTALL_JAVA}")
    return Path(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMember:
    """A server's place in its ensemble."""

    own_id: int
    servers: Mapping[int, str]
    """All servers as `host:port:port`: the port for followers, then the port for elections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProtection:
    """Users of a server, and its certificate."""

    users: Mapping[str, Secret]
    """Passwords by user, for SASL (DIGEST-MD5)."""
    requires_user: bool = True
    """True if clients that are not logged in by SASL are turned away; False leaves all protection to ACLs."""
    keystore: Path | None = None
    """File with the private key and its certificate chain, in PEM. The port then serves TLS only."""
    truststore: Path | None = None
    """File with the certificates of the authorities whose clients are taken, in PEM; None asks for no certificate."""


class ZooKeeperProcess:
    """A ZooKeeper server on `host`: standalone, or with `member` a server of an ensemble, which needs a majority.

    With `protection` it has users and serves TLS; the next start may have another.

    In trio: `async with ZooKeeperProcess(directory) as zookeeper`, or `await start()` and `await stop()`.
    Outside of trio: `with ZooKeeperProcess(directory) as zookeeper`. `start` works again after `kill` or `stop`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        member: EnsembleMember | None = None,
        protection: ServerProtection | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.protection = protection
        self._port = port
        self._host = host
        self._member = member
        self._child: ChildProcess | None = None

    @property
    def address(self) -> HostPort:
        """The address of the server; the first start chooses a free port if none was given."""
        return HostPort(self._host, self._port)

    @property
    def connect(self) -> str:
        """The connect string for clients."""
        return str(self.address)

    @property
    def pid(self) -> int | None:
        """The process id; None if the server is not running."""
        return self._child.pid if self._child is not None and self._child.running else None

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _users_path(self) -> Path:
        return self.directory / "users.jaas"

    @property
    def log_path(self) -> Path:
        """The server's standard output."""
        return self.directory / "zookeeper.log"

    async def start(self) -> int:
        """Start the server, wait until it answers, and return its process id.

        Raises ConfigurationError if Java is missing or too old, or the port is taken; ProcessEndedError, with the end
        of the log, if the server ends at once; DeadlineExceededError if it does not answer in time.
        """
        if self.pid is not None:
            return self.pid
        java = await trio.to_thread.run_sync(find_java)
        if self._port == 0:
            self._port = free_port(self._host)
        # Otherwise another process on this port would be taken for the server.
        if not is_port_free(self._port, self._host):
            raise ConfigurationError("ZooKeeper's port", f"{self.address} is taken by another process")
        self._write_settings()
        command = [
            str(java),
            "-Xmx256m",
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),  # it has little to do: a quick start is worth more
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            f"-Dzookeeper.preAllocSize={LOG_FILE_KB}",
            "-cp",
            class_path(),
            *(() if self.protection is None else (f"-Djava.security.auth.login.config={self._users_path}",)),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]
        self._child = start_process("zookeeper", command, log=self.log_path)
        try:
            await self._child.wait_until(self._answers, START_TIMEOUT_S)
        except BaseException:
            await self._child.stop(grace_s=0)
            raise
        return self._child.pid

    async def stop(self) -> None:
        """Stop the server by SIGTERM, then by SIGKILL after STOP_GRACE_S. Completes even when cancelled."""
        if self._child is not None:
            await self._child.stop(STOP_GRACE_S)

    async def wait(self) -> int:
        """Wait until the server has ended; returns its exit code (negative: the signal). Call after `start`."""
        if self._child is None:
            raise PipelineError("ZooKeeper was not started")
        return await self._child.wait()

    def kill(self) -> None:
        """Kill the server, as in a crash. `wait` returns when it has ended."""
        if self._child is not None:
            self._child.kill()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        trio.run(self.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trio.run(self.stop)

    async def _answers(self) -> bool:
        is_encrypted = self.protection is not None and self.protection.keystore is not None
        ask = partial(_ask, self.address, is_encrypted=is_encrypted)
        if await ask(b"ruok") != b"imok" or b"Mode:" not in await ask(b"srvr"):
            return False
        # Another server may have taken the port since it was free: ours is the one with our directory.
        own = f"dataDir={self._data}/".encode()
        return any(_plain(line).startswith(_plain(own)) for line in (await ask(b"conf")).splitlines())

    def _port_settings(self) -> Mapping[str, object]:
        if self.protection is None or self.protection.keystore is None:
            return {"clientPort": self._port, "clientPortAddress": self.address.host}
        return {"secureClientPort": self._port, "secureClientPortAddress": self.address.host}

    def _write_settings(self) -> None:
        data = self._data
        data.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": data,
            **self._port_settings(),
            "tickTime": TICK_MS,
            "maxSessionTimeout": MAX_SESSION_TIMEOUT_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "4lw.commands.whitelist": "conf,ruok,srvr",
        }
        if self._member is not None:
            (data / "myid").write_text(str(self._member.own_id))
            ensemble = {f"server.{number}": address for number, address in self._member.servers.items()}
            settings |= {"initLimit": INIT_LIMIT_TICKS, "syncLimit": SYNC_LIMIT_TICKS, **ensemble}
        if self.protection is not None:
            settings |= _protection_settings(self.protection)
            _write_users(self._users_path, self.protection.users)
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.directory / "zoo.cfg").write_text(text)
        (self.directory / "log4j2.properties").write_text(LOGGING)


def _protection_settings(protection: ServerProtection) -> Mapping[str, object]:
    """Return the settings of zoo.cfg. The server takes unknown ones as properties behind `zookeeper.`."""
    settings: dict[str, object] = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    if protection.requires_user:
        settings |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
    if protection.keystore is not None:
        settings |= {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.type": "PEM",
            "ssl.keyStore.location": protection.keystore.absolute(),
            "ssl.clientAuth": "none" if protection.truststore is None else "want",
        }
    if protection.truststore is not None:
        settings |= {"ssl.trustStore.type": "PEM", "ssl.trustStore.location": protection.truststore.absolute()}
    return settings


def _write_users(path: Path, users: Mapping[str, Secret]) -> None:
    """Write the users in the form of Java's logins. Raises ConfigurationError."""
    for user, password in users.items():
        if not re.fullmatch(r"[\w.@-]+", user, re.ASCII) or re.search(r'["\\\s]', password.reveal()):
            raise ConfigurationError(
                "ZooKeeper's users", f"{user}: use letters, digits and - _ . @; no quotes or spaces"
            )
    options = "".join(f'\n    user_{user}="{password.reveal()}"' for user, password in users.items())
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"Server {{\n    org.apache.zookeeper.server.auth.DigestLoginModule required{options};\n}};\n")


def class_path() -> str:
    """Return the class path of a ZooKeeper server. Raises ConfigurationError if PySpark lacks it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("pyspark", "not installed, and ZooKeeper's jars come with it: pip install pyspark")
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    found = [str(jar) for pattern in JARS for jar in sorted(jars.glob(f"{pattern}.jar"))]
    if not any("zookeeper" in jar for jar in found):
        raise ConfigurationError("pyspark", f"{jars} holds no zookeeper jar: pip install --force-reinstall pyspark")
    return os.pathsep.join(found)


def _plain(path: bytes) -> bytes:
    """Remove letters that Java reads or writes in another encoding, and the ? that may stand for them."""
    return bytes(letter for letter in path if letter < 128 and letter != ord("?"))


async def _ask(address: HostPort, command: bytes, *, is_encrypted: bool = False) -> bytes:
    """Return the answer to a four-letter word, empty if no server answers."""
    answer = b""
    with trio.move_on_after(PROBE_TIMEOUT_S), suppress(OSError, trio.BrokenResourceError, ssl.SSLError):
        async with await _connect(address, is_encrypted) as connection:
            await connection.send_all(command)
            async for chunk in connection:
                answer += chunk
    return answer


async def _connect(address: HostPort, is_encrypted: bool) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(address.host, address.port)
    if not is_encrypted:
        return stream
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the answer names its directory, and no secret
    return trio.SSLStream(stream, context, server_hostname=address.host, https_compatible=True)
