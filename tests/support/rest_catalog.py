"""A real REST catalog of Iceberg tables, as a process of its own: the servlet of Iceberg's own tests over SQLite.

Iceberg publishes its adapter and servlet beside `iceberg-core`, for tests. Jetty and the Hadoop client are those among
pyspark's jars, and py4j puts the parts together, so that no Java is compiled.

What the catalog knows is one SQLite file: a server that was killed goes on with it, and a copy of it put back is a
catalog that was restored.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from pipeline.processes import free_port
from tests.support.jars import Artifact, fetch_jars, java, pyspark_jars

OPTIONS = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
SQLITE = Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0")
SERVER = Artifact("org.apache.iceberg", "iceberg-core", "1.10.0", "tests")


@dataclass
class RestCatalogServer:
    """A running server. `database` is all that it knows."""

    directory: Path
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.directory / "catalog.db"

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "rest", "uri": self.url}

    def kill(self) -> None:
        """Ends the server as a crash would."""
        _end(self.process)

    def restart(self) -> None:
        """Starts a killed server again, on its port."""
        self.process = _start(self.directory, self.port)


@contextmanager
def running_rest_catalog(directory: Path) -> Iterator[RestCatalogServer]:
    port = free_port()
    server = RestCatalogServer(directory, port, _start(directory, port))
    try:
        yield server
    finally:
        server.kill()


def _start(directory: Path, port: int) -> "subprocess.Popen[bytes]":
    jars = f"{fetch_jars(SERVER, SQLITE)}/*:{pyspark_jars()}/*"
    process: subprocess.Popen[bytes]
    gateway_port, process = launch_gateway(
        classpath=jars,
        jarpath=str(next(pyspark_jars().glob("py4j-*.jar"))),
        java_path=java(),
        javaopts=OPTIONS,
        die_on_exit=True,
        return_proc=True,
    )
    try:
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port, auto_convert=True))
        _serve(gateway.jvm, directory, port)
        gateway.close()
    except BaseException:
        _end(process)
        raise
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr] # what was not written yet goes nowhere


def _serve(jvm: Any, directory: Path, port: int) -> None:
    catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
    catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
    properties = {
        "uri": f"jdbc:sqlite:{directory}/catalog.db?busy_timeout=60000",
        "warehouse": directory.as_uri(),
        "jdbc.schema-version": "V1",
        "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    catalog.initialize("rest", properties)
    servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    jetty = jvm.org.sparkproject.jetty
    context = jetty.ee10.servlet.ServletContextHandler(0)
    context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", port))
    server.setHandler(context)
    # Names of several parts have %1F between them, which Jetty refuses by itself.
    context.getServletHandler().setDecodeAmbiguousURIs(True)
    http = server.getConnectors()[0].getDefaultConnectionFactory().getHttpConfiguration()
    http.setUriCompliance(jetty.http.UriCompliance.UNSAFE)
    server.start()
