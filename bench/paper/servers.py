"""The four systems of the experiment: each a server on a free port of 127.0.0.1, and the class of its Java client.

All keep messages persistently and flush when the operating system or they themselves see fit, never for each message:
Apache Kafka, ours and RabbitMQ by default, ActiveMQ with a journal that is synced periodically. Heaps of 1 GB.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.broker.clients import create_topic
from bench.broker.servers import KAFKA, OURS, Server, apache_kafka, our_broker
from bench.page import ROOT
from bench.processes import ServerProcess, ended
from pipeline.processes import free_port
from tests.support.jars import Artifact, fetch_jars, java
from tests.support.kafka import kafka_jars

RABBITMQ, ACTIVEMQ = "RabbitMQ", "ActiveMQ"
UNPACKED = ROOT / ".cache"
RABBITMQ_CLIENT = Artifact("com.rabbitmq", "amqp-client", "5.25.0")
ACTIVEMQ_XML = """<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="http://www.springframework.org/schema/beans
      http://www.springframework.org/schema/beans/spring-beans.xsd
      http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" dataDirectory="{data}" useJmx="false">
    <persistenceAdapter><kahaDB directory="{data}/kahadb" journalDiskSyncStrategy="periodic"/></persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage percentOfJvmHeap="70"/></memoryUsage>
    </systemUsage></systemUsage>
    <transportConnectors><transportConnector name="openwire" uri="tcp://127.0.0.1:{port}"/></transportConnectors>
  </broker>
</beans>
"""
LOGGING_TO_LEAVE_OUT = (
    "slf4j-jcl",
    "slf4j-log4j12",
    "slf4j-nop",
    "slf4j-simple",
    "jcl-over-slf4j",
    "log4j-over",
    "jul-to",
)


@dataclass(frozen=True, slots=True)
class System:
    """A running server. `data` holds its messages, in files that match `pattern`."""

    name: str
    process: ServerProcess
    data: Path
    pattern: str
    client: str
    client_jars: str
    server: Server | None = None

    def destination(self, name: str) -> str:
        """What clients send to and read from; queues are made by the clients."""
        return create_topic(self.server, 1) if self.server is not None else name


@contextmanager
def running(name: str, directory: Path) -> Iterator[System]:
    """One of the four, until the block ends."""
    directory.mkdir(parents=True)
    starts = {OURS: _kafka_like, KAFKA: _kafka_like, RABBITMQ: _rabbitmq, ACTIVEMQ: _activemq}
    with starts[name](name, directory) as system:
        yield system


@contextmanager
def _kafka_like(name: str, directory: Path) -> Iterator[System]:
    with our_broker(directory) if name == OURS else apache_kafka(directory) as server:
        server.start()
        yield System(name, server.process, server.directory, "bench-*/*.log", "KafkaRun", f"{kafka_jars()}/*", server)


@contextmanager
def _rabbitmq(name: str, directory: Path) -> Iterator[System]:
    """The server of Debian's package and the Erlang port mapper it needs, both ours alone."""
    unpacked = UNPACKED / "rabbitmq"
    port, own_port, mapper_port = free_port(), free_port(), free_port()
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "distribution.listener.interface = 127.0.0.1\n"
        f"distribution.listener.port_range.min = {own_port}\n"
        f"distribution.listener.port_range.max = {own_port}\n",
        encoding="utf-8",
    )
    environment = {
        "PATH": f"{unpacked}/usr/bin:{os.environ['PATH']}",
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RUNNING_UNDER_SYSTEMD": "1",  # else a shell stands between us and the server
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
    }
    [command] = unpacked.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
    mapper_command = [str(unpacked / "usr/bin/epmd"), "-port", str(mapper_port), "-address", "127.0.0.1"]
    with ExitStack() as stack:
        mapper = stack.enter_context(ended(ServerProcess(mapper_command, mapper_port, directory / "epmd.log")))
        mapper.launch()
        mapper.wait_for_port()
        server = stack.enter_context(ended(ServerProcess([str(command)], port, directory / "server.log", environment)))
        server.launch()
        server.wait_for_port()
        client_jars = f"{fetch_jars(RABBITMQ_CLIENT)}/*"
        yield System(name, server, directory / "data", "*", "RabbitMqRun", client_jars)
        server.stop()


@contextmanager
def _activemq(name: str, directory: Path) -> Iterator[System]:
    jars = [
        str(jar)
        for jar in sorted((UNPACKED / "activemq/usr/share/java").glob("*.jar"))
        if not jar.name.startswith(LOGGING_TO_LEAVE_OUT)
    ]
    port = free_port()
    data = directory / "data"
    configuration = directory / "activemq.xml"
    configuration.write_text(ACTIVEMQ_XML.format(data=data, port=port), encoding="utf-8")
    places = [f"-Dactivemq.{place}={directory}" for place in ("base", "home", "conf", "data")]
    command = [java(), "-Xmx1G", *places, "-cp", os.pathsep.join(jars), "org.apache.activemq.console.Main"]
    command += ["start", f"xbean:file:{configuration}"]
    with ended(ServerProcess(command, port, directory / "server.log")) as server:
        server.launch()
        server.wait_for_port()
        yield System(name, server, data, "kahadb/*", "ActiveMqRun", os.pathsep.join(jars))
        server.stop()


def compiled_clients(directory: Path) -> Path:
    """Compiles the clients into `directory`. Raises RuntimeError without a Java that can compile."""
    activemq = UNPACKED / "activemq/usr/share/java"
    jars = [*kafka_jars().glob("*.jar"), *fetch_jars(RABBITMQ_CLIENT).glob("*.jar")]
    jars += [activemq / "activemq-client.jar", *activemq.glob("geronimo-j*spec.jar")]
    sources = [str(source) for source in sorted((Path(__file__).parent / "java").glob("*.java"))]
    compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", str(directory)]
    done = subprocess.run(
        [*compiler, "-cp", os.pathsep.join(map(str, jars)), *sources], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"the clients could not be compiled; a JDK is needed (Debian: apt install openjdk-17-jdk-headless):\n"
            f"{(done.stderr or done.stdout)[-2000:]}"
        )
    return directory
