"""A real HDFS on this machine: one NameNode and one DataNode, as processes of their own, for tests and the demo's kin.

Both processes are children of the test; `stop` ends them by their ids, and a context manager always calls it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from hdfs_native import Client

from pipeline.errors import StorageError
from pipeline.hadoop.files.hdfs import HdfsFileSystem
from pipeline.processes import free_port
from tests.support.jars import Artifact, fetch_jars, java
from tests.support.kdc import REALM, Kdc

HADOOP_REVISION = "3.5.0"
START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.1
ANSWER_S = 10.0

NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ROLES = {"namenode": NAME_NODE, "datanode": DATA_NODE}


@dataclass(frozen=True, slots=True)
class HdfsCluster:
    """A running cluster. `url` is `hdfs://127.0.0.1:<port>`; `pids` by role."""

    url: str
    pids: dict[str, int]
    class_path: str
    processes: dict[str, "subprocess.Popen[bytes]"]
    directory: Path
    options: Sequence[str] = ()
    """Options of the Java machines."""

    def client(self) -> Client:
        return Client(self.url)

    def kill(self, role: str) -> None:
        """Ends `namenode` or `datanode` as a crash would."""
        self.processes[role].kill()
        self.processes[role].wait()

    def restart(self, role: str) -> None:
        """Starts a killed process again, and waits until HDFS takes writes."""
        self.processes[role] = _start(role, self.class_path, self.directory, self.options)
        self.pids[role] = self.processes[role].pid
        _wait_until_writable(self.url, list(self.processes.values()), self.directory)


def hdfs_jars() -> Path:
    """Server and client jars of HDFS (two of the three are only *provided* dependencies, so all are named)."""
    names = ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common")
    return fetch_jars(*(Artifact("org.apache.hadoop", name, HADOOP_REVISION) for name in names))


@contextmanager
def running_hdfs(directory: Path, kdc: Kdc | None = None) -> Iterator[HdfsCluster]:
    """Formats and starts HDFS below `directory`, waits until it takes writes, and stops it at the end.

    With a KDC it is secured, and this process must log in (`kerberos_client`) before it waits.
    """
    port, http_port = free_port(), free_port()
    url = f"hdfs://{'127.0.0.1' if kdc is None else 'localhost'}:{port}"
    more = {} if kdc is None else _kerberos_settings(kdc)
    conf = write_configuration(directory, "127.0.0.1" if kdc is None else "localhost", port, http_port, more)
    options = () if kdc is None else (f"-Djava.security.krb5.conf={kdc.settings}",)
    class_path = f"{conf}:{hdfs_jars()}/*"
    run_to_end(
        [*java_command(class_path, directory, options), NAME_NODE, "-format", "-nonInteractive"],
        directory / "format.log",
    )
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for role in ROLES:
            processes[role] = _start(role, class_path, directory, options)
        _wait_until_writable(url, list(processes.values()), directory)
        pids = {role: process.pid for role, process in processes.items()}
        yield HdfsCluster(url, pids, class_path, processes, directory, options)
    finally:
        _stop(list(processes.values()))


def _start(role: str, class_path: str, directory: Path, options: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    with (directory / f"{role}.log").open("ab") as log:
        command = [*java_command(class_path, directory, options), ROLES[role]]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


SUPERUSER = "hdfs/localhost"


def _kerberos_settings(kdc: Kdc) -> Mapping[str, str]:
    """Settings of core-site.xml and hdfs-site.xml: authenticated calls and blocks, without privileged ports."""
    keytab = str(kdc.keytab(SUPERUSER, "HTTP/localhost"))
    principals = {
        "dfs.namenode.kerberos.principal": SUPERUSER,
        "dfs.datanode.kerberos.principal": SUPERUSER,
        "dfs.web.authentication.kerberos.principal": "HTTP/localhost",
        "dfs.namenode.kerberos.internal.spnego.principal": "HTTP/localhost",
    }
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "dfs.permissions.enabled": "true",
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
        **{name: f"{principal}@{REALM}" for name, principal in principals.items()},
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.keytab": keytab,
    }


def write_configuration(directory: Path, host: str, port: int, http_port: int, more: Mapping[str, str]) -> Path:
    """Write the settings of a NameNode on `host` and its DataNode, and return their folder for the class path."""
    conf = directory / "conf"
    for webapp in ("hdfs", "datanode"):  # without them the servers refuse to start
        (conf / "webapps" / webapp).mkdir(parents=True)
    address = "127.0.0.1" if host == "localhost" else host
    core = {"fs.defaultFS": f"hdfs://{host}:{port}", "hadoop.tmp.dir": str(directory / "tmp")}
    hdfs = {
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.name.dir": f"file://{directory}/name",
        "dfs.datanode.data.dir": f"file://{directory}/data",
        "dfs.namenode.rpc-address": f"{host}:{port}",
        "dfs.namenode.http-address": f"{address}:{http_port}",
        "dfs.datanode.address": f"{address}:0",
        "dfs.datanode.http.address": f"{address}:0",
        "dfs.datanode.ipc.address": f"{address}:0",
        "dfs.namenode.safemode.extension": "0",
        "dfs.heartbeat.interval": "1",
        "dfs.blocksize": str(8 << 20),  # of the free space, each block that is being written holds as much
        "dfs.namenode.redundancy.considerLoad": "false",
    }
    core |= {key: value for key, value in more.items() if key.startswith("hadoop.")}
    hdfs |= {key: value for key, value in more.items() if not key.startswith("hadoop.")}
    for name, settings in (("core-site.xml", core), ("hdfs-site.xml", hdfs)):
        properties = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()
        )
        (conf / name).write_text(f"<configuration>{properties}</configuration>", encoding="utf-8")
    return conf


def java_command(class_path: str, directory: Path, more: Sequence[str] = ()) -> list[str]:
    """The command that runs a class of HDFS, whose name follows."""
    options = ["-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dhadoop.log.dir={directory}"]
    return [java(), *options, *more, "-cp", class_path]


def run_to_end(command: list[str], log: Path) -> None:
    """Run a command. Raises RuntimeError with the end of its log if it fails."""
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, timeout=START_DEADLINE_S, check=False).returncode
    if code != 0:
        raise RuntimeError(f"{command[-3:]} ended with {code}:\n{log.read_text()[-3000:]}")


def _wait_until_writable(url: str, processes: list[subprocess.Popen[bytes]], directory: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        for process in processes:
            if process.poll() is not None:
                logs = "\n".join(path.read_text()[-2000:] for path in directory.glob("*node.log"))
                raise RuntimeError(f"HDFS ended with {process.returncode}:\n{logs}")
        try:
            files = HdfsFileSystem(url, timeout_s=ANSWER_S)
            path = f"/.ready-{uuid4()}"
            with files.create(path) as file:
                file.write(b"ready")
            files.delete(path)
        except StorageError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"HDFS takes no writes after {START_DEADLINE_S:.0f} s") from error
            time.sleep(POLL_S)
        else:
            return


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
