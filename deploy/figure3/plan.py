"""Hosts and processes of the figure, as they follow from company.toml and from what `pipeline deploy render` wrote.

The description has the services of the pipeline. Beside them are, in each live datacenter, a balancer, front ends and
an online consumer; in the hub a reader, which stands for those of the replicas, and HDFS and Spark on the host of the
load.
"""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from deploy.figure3.errors import FigureError
from pipeline.deployment.company import Company, CompanyHost, ServiceRole, company_of
from pipeline.deployment.services import bootstrap_of
from tests.support.hdfs import ROLES, hdfs_jars, java_command
from tests.support.jars import java
from tests.support.spark_cluster import HOME as SPARK_HOME

ROOT = Path(__file__).parents[2]
COMPANY = Path(__file__).with_name("company.toml")
FOLDER = ROOT / ".cache" / "figure3"
HUB = "hub"
LIVE = ("east", "west")
FRONT_ENDS = 2
FRONT_END_PORT = 8000
READER_PORT = 8001
BALANCER_PORT = 8080
NAME_NODE_PORT, NAME_NODE_HTTP_PORT = 8020, 9870
MASTER_PORT, MASTER_HTTP_PORT, WORKER_PORT = 7077, 8090, 7078
LOAD_PORT = 9190
LOAD_INTERVAL = "3s"
NUMBERS = {"front": 11, "balancer": 20, "reader": 30}
"""Last numbers of the addresses of hosts that are not in the description."""
PIDS = FOLDER / "pid"
"""Process ids, by stage and part: what `down` needs to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of the figure."""

    host: str
    service: str
    stage: int
    """Parts of a stage start together, once those of earlier stages are ready."""
    command: tuple[str, ...]
    ready: str = ""
    """URL that answers 200, or `host:port` that accepts connections, once the part is ready. Empty: at once."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the part, and of its files."""
        return f"{self.host}.{self.service}"

    @property
    def log(self) -> Path:
        """File of its output."""
        return FOLDER / "log" / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        """File with its process id."""
        return PIDS / str(self.stage) / self.name


@dataclass(frozen=True)
class Plan:
    """All hosts and parts. `delay_ms`: of the long way, in one direction; `mbit`: its rate."""

    delay_ms: float = 40.0
    mbit: float = 100.0

    @cached_property
    def company(self) -> Company:
        """The description."""
        company, faults = company_of(tomllib.loads(COMPANY.read_text(encoding="utf-8")))
        if company is None:
            raise FigureError("; ".join(faults))
        return company

    @cached_property
    def subnets(self) -> dict[str, str]:
        """First three numbers of the addresses of each datacenter."""
        return {host.datacenter: host.address.rpartition(".")[0] for host in self.company.hosts}

    @cached_property
    def hosts(self) -> dict[str, tuple[str, str]]:
        """Datacenter and address of each host."""
        described = {host.name: (host.datacenter, host.address) for host in self.company.hosts}
        return {**described, **dict(self._further_hosts())}

    def _further_hosts(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for datacenter in (*LIVE, HUB):
            names = {f"{datacenter}-reader": NUMBERS["reader"]}
            if datacenter in LIVE:
                names[f"{datacenter}-balancer"] = NUMBERS["balancer"]
                names |= {f"{datacenter}-front-{n + 1}": NUMBERS["front"] + n for n in range(FRONT_ENDS)}
            for name, number in names.items():
                yield name, (datacenter, f"{self.subnets[datacenter]}.{number}")

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return self.hosts[host][1]

    def bootstrap(self, datacenter: str) -> str:
        """Return the brokers of a datacenter."""
        return bootstrap_of(self.company, datacenter)

    def url(self, role: ServiceRole) -> str:
        """Return the URL of the hub's registry or audit."""
        (host,) = self.company.hosts_with(role, HUB)
        return f"http://{host.address}:{self.company.port(host, role.value)}"

    @property
    def readers(self) -> dict[str, str]:
        """URLs of the delays of readers, by datacenter."""
        return {name: f"http://{self.address(f'{name}-reader')}:{READER_PORT}/delays" for name in (*LIVE, HUB)}

    @property
    def front_ends(self) -> dict[str, str]:
        """URLs of front ends, by host."""
        hosts = [f"{name}-front-{number + 1}" for name in LIVE for number in range(FRONT_ENDS)]
        return {host: f"http://{self.address(host)}:{FRONT_END_PORT}" for host in hosts}

    @property
    def balancers(self) -> dict[str, str]:
        """URLs of balancers, by datacenter."""
        return {name: f"http://{self.address(f'{name}-balancer')}:{BALANCER_PORT}" for name in LIVE}

    @property
    def lake(self) -> tuple[str, str]:
        """URL of HDFS, and the folder of the load."""
        (load,) = self.company.loads
        scheme, _, rest = load.root.partition("://")
        authority, _, path = rest.partition("/")
        return f"{scheme}://{authority}", f"/{path}"

    @property
    def lake_host(self) -> str:
        """Host of the load, of Spark and of HDFS."""
        (host,) = self.company.hosts_with(ServiceRole.LOAD)
        return host.name

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All processes, in the order of their start. The description must have been rendered."""
        return tuple(
            sorted(
                [*self._wan(), *self._described(), *self._hadoop(), *self._programs(), *self._balancers()],
                key=lambda part: part.stage,
            )
        )

    def _wan(self) -> Iterator[Part]:
        for live in LIVE:
            way = [live, HUB, self.subnets[live], self.subnets[HUB]]
            rates = ["--delay-ms", str(self.delay_ms), "--mbit", str(self.mbit)]
            yield Part(host=live, service="wan", stage=1, command=_python("deploy.figure3.wan", *way, *rates))

    def _described(self) -> Iterator[Part]:
        """Yield the services whose settings were rendered, as the file `units` of each host names them."""
        targets = json.loads((FOLDER / "rendered" / "prometheus" / "targets.json").read_text())
        urls = {(t["labels"]["host"], t["labels"]["service"]): f"http://{t['targets'][0]}/readyz" for t in targets}
        for host in self.company.hosts:
            for unit in (FOLDER / "rendered" / host.name / "units").read_text().split():
                role, _, instance = unit.removeprefix("pipeline-").partition("@")
                service = f"{role}-{instance.rpartition('.')[0]}"
                settings = FOLDER / "rendered" / host.name / "etc" / "pipeline" / service
                if role == "zookeeper":
                    number = service.rpartition("-")[2]
                    yield self._zookeeper(host, service, "--config", f"{settings}.properties", "--id", number)
                elif role == "load":
                    yield self._load(host.name, service, f"{settings}.toml")
                else:
                    yield Part(
                        host=host.name,
                        service=service,
                        stage=2 if role == "broker" else 3,
                        command=_python("pipeline", role, "start", "--config", f"{settings}.toml"),
                        ready=urls[host.name, service],
                    )

    def _zookeeper(self, host: CompanyHost, service: str, *options: str) -> Part:
        return Part(
            host=host.name,
            service=service,
            stage=1,
            command=_python("pipeline", "zookeeper", "start", *options),
            ready=f"{host.address}:{self.company.port(host, 'zookeeper')}",
            environment={"ZK_SERVER_HEAP": "200", "SERVER_JVMFLAGS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        )

    def _load(self, host: str, service: str, settings: str) -> Part:
        address = self.address(host)
        spark = {
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.executor.memory": "768m",
            "spark.pyspark.python": sys.executable,
            "spark.locality.wait": "0s",
        }
        options = ["--config", settings, "--interval", LOAD_INTERVAL, "--http-listen", f"{address}:{LOAD_PORT}"]
        options += ["--datacenter", HUB, "--master", f"spark://{address}:{MASTER_PORT}"]
        options += [word for key, value in spark.items() for word in ("--conf", f"{key}={value}")]
        command = _python("pipeline", "load", "run", *options)
        return Part(
            host=host,
            service=service,
            stage=4,
            command=command,
            ready=f"http://{address}:{LOAD_PORT}/healthz",
            environment={"SPARK_LOCAL_IP": address},
        )

    def _hadoop(self) -> Iterator[Part]:
        host, address = self.lake_host, self.address(self.lake_host)
        for role, main in ROLES.items():
            is_name_node = role == "namenode"
            yield Part(
                host=host,
                service=role,
                stage=1 if is_name_node else 2,
                command=(*self.hdfs_command(), main),
                ready=f"{address}:{NAME_NODE_PORT}" if is_name_node else "",
            )
        environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": address,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_DIRS": str(FOLDER / "tmp"),
        }
        spark = (java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{SPARK_HOME}/jars/*")
        pages = ("--host", address, "--webui-port")
        master = (*pages, str(MASTER_HTTP_PORT), "--port", str(MASTER_PORT))
        room = ("-c", "2", "-m", "1g", "-d", str(FOLDER / "spark"))
        worker = (*pages, "0", "--port", str(WORKER_PORT), *room, f"spark://{address}:{MASTER_PORT}")
        for stage, role, options, port in ((1, "Master", master, MASTER_PORT), (2, "Worker", worker, WORKER_PORT)):
            yield Part(
                host=host,
                service=f"spark-{role.lower()}",
                stage=stage,
                command=(*spark, f"org.apache.spark.deploy.{role.lower()}.{role}", *options),
                ready=f"{address}:{port}",
                environment=environment,
            )

    @staticmethod
    def hdfs_command() -> list[str]:
        """Return the command that runs a class of HDFS, whose name follows."""
        return java_command(f"{FOLDER}/hdfs/conf:{hdfs_jars()}/*", FOLDER / "hdfs")

    def _programs(self) -> Iterator[Part]:
        for host, url in self.front_ends.items():
            yield self._program("front_end", host, FRONT_END_PORT, url)
        for datacenter, url in self.readers.items():
            host = f"{datacenter}-reader"
            yield self._program("online_reader", host, READER_PORT, url.removesuffix("/delays"), "--group", host)

    def _program(self, module: str, host: str, port: int, url: str, *more: str) -> Part:
        datacenter, address = self.hosts[host]
        options = ["--listen", f"{address}:{port}", "--bootstrap", self.bootstrap(datacenter), "--host", host]
        options += ["--registry", self.url(ServiceRole.REGISTRY), "--datacenter", datacenter, *more]
        command = _python(f"deploy.figure3.{module}", *options)
        service = module.replace("_", "-")
        return Part(host=host, service=service, stage=4, command=command, ready=f"{url}/readyz")

    def _balancers(self) -> Iterator[Part]:
        program = ROOT / ".cache" / "haproxy" / "usr"
        libraries = {"LD_LIBRARY_PATH": ":".join(map(str, sorted((program / "lib").glob("*-linux-gnu"))))}
        is_unpacked = (program / "sbin" / "haproxy").exists()
        haproxy = str(program / "sbin" / "haproxy") if is_unpacked else system_haproxy() or "haproxy"
        for datacenter, url in self.balancers.items():
            yield Part(
                host=f"{datacenter}-balancer",
                service="haproxy",
                stage=5,
                command=(haproxy, "-db", "-f", str(FOLDER / f"haproxy-{datacenter}.cfg")),
                ready=f"{url}/readyz",
                environment=libraries if is_unpacked else {},
            )

    def balancer_settings(self, datacenter: str) -> str:
        """Return the settings of a balancer: requests go to the front ends in turn, past those that do not answer."""
        address = self.address(f"{datacenter}-balancer")
        servers = [
            f"    server {host} {url.removeprefix('http://')} check inter 1s"
            for host, url in self.front_ends.items()
            if self.hosts[host][0] == datacenter
        ]
        return "\n".join([BALANCER.format(address=address, port=BALANCER_PORT), *servers, ""])


BALANCER = """\
global
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 180s
    timeout server 180s
    option redispatch
frontend users
    bind {address}:{port}
    monitor-uri /readyz
    default_backend front_ends
backend front_ends
    balance roundrobin
    option httpchk GET /readyz"""


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def system_haproxy() -> str | None:
    """Return the path of an installed HAProxy; a user's PATH need not have the folder of servers."""
    return shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
