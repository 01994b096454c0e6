"""A real Hive metastore, as a process of its own: the one among pyspark's jars, over Derby.

Its tables of locks are made first, since it makes them itself only for its own tests, in which it refuses locks of
clients that name no operation, as pyiceberg does.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from pipeline.processes import free_port
from tests.support.jars import java, pyspark_jars

START_DEADLINE_S = 240.0
OPTIONS = [
    *("-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "util")),
    "-Dhive.async.log.enabled=false",
    "-Ddatanucleus.connectionPoolingType=HikariCP",
    "-Ddatanucleus.schema.autoCreateAll=true",
    "-Dhive.metastore.schema.verification=false",
]


@contextmanager
def running_hive_metastore(directory: Path) -> Iterator[str]:
    """Yields the URI of a metastore whose database and logs are below `directory`."""
    port = free_port()
    places = [
        f"-Dderby.system.home={directory}",
        f"-Djava.io.tmpdir={directory}",
        f"-Djavax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={directory}/db;create=true",
        f"-Dhive.metastore.warehouse.dir=file://{directory}/warehouse",
    ]
    process: subprocess.Popen[bytes]
    gateway_port, process = launch_gateway(
        classpath=f"{pyspark_jars()}/*",
        jarpath=str(next(pyspark_jars().glob("py4j-*.jar"))),
        java_path=java(),
        javaopts=[*OPTIONS, *places],
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port, auto_convert=True))
    serving = threading.Thread(target=_serve, args=(gateway.jvm, port))
    try:
        metastore = gateway.jvm.org.apache.hadoop.hive.metastore
        metastore.txn.TxnDbUtil.prepDb(gateway.jvm.org.apache.hadoop.hive.conf.HiveConf())
        serving.start()
        _wait_until_listening(port)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr] # what was not written yet goes nowhere
        if serving.ident is not None:
            serving.join()
        gateway.close()


def _serve(jvm: Any, port: int) -> None:
    with suppress(Exception):  # the process ends, and the call with it
        jvm.org.apache.hadoop.hive.metastore.HiveMetaStore.startMetaStore(port, None)


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 30).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
