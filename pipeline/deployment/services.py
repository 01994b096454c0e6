"""The services of a company, and the settings of each, as they follow from the description. Pure.

Settings that the description decides (ids, names, addresses, folders, protection) win over those of `settings`; those
win over defaults that the number of hosts suggests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from pipeline.deployment.company import (
    BROKER_PORT_STEP,
    Company,
    CompanyHost,
    CompanyLoad,
    CompanyMirror,
    ServiceRole,
)
from pipeline.deployment.protection import (
    broker_protection,
    client_protection,
    http_protection,
    listener_protocol,
    login_protection,
    zookeeper_client_protection,
    zookeeper_protection,
)
from pipeline.model import HostPort

DATA = "/var/lib/pipeline"
SCHEMAS_TOPIC = "_schemas"
MAX_DEFAULT_REPLICAS = 3
OPEN_PATHS = {"http.authentication.skip.paths": "/healthz,/readyz"}
"""Health needs no password, unless `settings` say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyService:
    """A service on a host, and its settings."""

    role: ServiceRole
    instance: str
    host: CompanyHost
    decided: Mapping[str, Any]
    """Settings that follow from the description."""
    defaults: Mapping[str, Any]
    """Settings that hold if nothing else is given."""
    given: Mapping[str, Any]
    """Settings of the tables `settings`, among which those of `decided` are faults."""
    ports: Mapping[str, int]
    """Ports that the service binds, by what they are for: `http` for the HTTP server."""

    @property
    def name(self) -> str:
        """Name of the settings file and of the data folder."""
        return f"{self.role.value}-{self.instance}"

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, those that follow from the description first."""
        others = {**self.defaults, **self.given}
        return {**self.decided, **{key: value for key, value in others.items() if key not in self.decided}}


def services_of(company: Company) -> tuple[CompanyService, ...]:
    """Return all services of a company that has no faults, in the order of hosts, and of roles on each."""
    return tuple(service for host in company.hosts for service in _services_on(company, host))


def _services_on(company: Company, host: CompanyHost) -> Iterable[CompanyService]:
    datacenter = host.datacenter
    if host.zookeeper is not None:
        yield _zookeeper(company, host)
    for place in range(len(host.brokers)):
        yield _broker(company, host, place)
    if ServiceRole.REGISTRY in host.roles:
        yield _http_service(company, host, ServiceRole.REGISTRY, _registry_settings(company, host))
    mirror = company.mirror_into(datacenter)
    if ServiceRole.MIRROR in host.roles and mirror is not None:
        yield _http_service(company, host, ServiceRole.MIRROR, _mirror_settings(company, mirror))
    if ServiceRole.AUDIT in host.roles:
        yield _http_service(company, host, ServiceRole.AUDIT, _audit_settings(company, datacenter))
    if ServiceRole.LOAD in host.roles:
        for load in company.loads:
            if load.datacenter == datacenter:
                yield _load(company, host, load)


def bootstrap_of(company: Company, datacenter: str) -> str:
    """Return the addresses of all brokers of a datacenter, `host:port,...`."""
    return ",".join(
        str(HostPort(host.address, broker_port(company, host, place)))
        for host in company.hosts_with(ServiceRole.BROKER, datacenter)
        for place in range(len(host.brokers))
    )


def broker_port(company: Company, host: CompanyHost, place: int) -> int:
    """Return the port of the broker at a place in the host's list."""
    return company.port(host, "broker") + BROKER_PORT_STEP * place


def zookeeper_connect(company: Company, datacenter: str) -> str:
    """Return the addresses of a datacenter's ZooKeeper servers, `host:port,...`."""
    return ",".join(
        str(HostPort(host.address, company.port(host, "zookeeper")))
        for host in company.hosts_with(ServiceRole.ZOOKEEPER, datacenter)
    )


def bound_address(host: CompanyHost, port: int) -> HostPort:
    """Return the address that a service binds: the host's IP address if the description has it, else all."""
    return HostPort(host.listen or (host.address if is_ip(host.address) else "0.0.0.0"), port)


def is_ip(text: str) -> bool:
    """Return True if a text is an IP address, and no name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def copied_datacenters(company: Company, datacenter: str) -> tuple[str, ...]:
    """Return the datacenters whose topics an audit compares with their replicas here: internal topics do not count."""
    mirror = company.mirror_into(datacenter)
    if mirror is None or mirror.is_of_internal_topics:
        return ()
    return mirror.sources


def audited_datacenters(company: Company) -> frozenset[str]:
    """Return the datacenters whose brokers count records, as an audit reads their counts."""
    return frozenset(
        name
        for host in company.hosts_with(ServiceRole.AUDIT)
        for name in (host.datacenter, *copied_datacenters(company, host.datacenter))
    )


def brings_schemas(mirror: CompanyMirror | None) -> bool:
    """True if a mirror copies the topic of the schema registries."""
    return mirror is not None and mirror.copies(SCHEMAS_TOPIC)


def further_folders(service: CompanyService) -> tuple[str, ...]:
    """Return the folders that a service's settings name beside its own: of ZooKeeper's log, and of a load's root."""
    root = str(service.settings.get("root", ""))
    named = (service.settings.get("dataLogDir"), root.removeprefix("file://") if root.startswith("file:///") else None)
    return tuple(str(folder) for folder in named if folder is not None)


def _service(
    company: Company,
    host: CompanyHost,
    role: ServiceRole,
    instance: str,
    defaults: Mapping[str, Any],
    decided: Mapping[str, Any],
    ports: Mapping[str, int],
    further: Mapping[str, Any] | None = None,
) -> CompanyService:
    return CompanyService(
        role=role,
        instance=instance,
        host=host,
        decided=decided,
        defaults=defaults,
        given={**company.settings_of(role, host.datacenter), **(further or {})},
        ports=ports,
    )


def _zookeeper(company: Company, host: CompanyHost) -> CompanyService:
    members = company.hosts_with(ServiceRole.ZOOKEEPER, host.datacenter)
    ports = {name: company.port(host, name) for name in ("zookeeper", "zookeeper_follower", "zookeeper_election")}
    bound = bound_address(host, ports["zookeeper"])
    secure = "secureClient" if company.security.tls else "client"
    decided = {
        "dataDir": f"{DATA}/zookeeper-{host.zookeeper}",
        f"{secure}Port": bound.port,
        f"{secure}PortAddress": bound.host,
        **zookeeper_protection(company.security),
    }
    if len(members) > 1:
        decided |= {
            f"server.{member.zookeeper}": ":".join(
                [
                    f"[{member.address}]" if ":" in member.address else member.address,
                    str(company.port(member, "zookeeper_follower")),
                    str(company.port(member, "zookeeper_election")),
                ]
            )
            for member in members
        }
    defaults = {
        "tickTime": 2000,
        "initLimit": 10,
        "syncLimit": 5,
        "maxClientCnxns": 0,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "conf,ruok,srvr,mntr",
    }
    return _service(company, host, ServiceRole.ZOOKEEPER, str(host.zookeeper), defaults, decided, ports)


def _broker(company: Company, host: CompanyHost, place: int) -> CompanyService:
    number, datacenter = host.brokers[place], host.datacenter
    replicas = min(MAX_DEFAULT_REPLICAS, sum(len(each.brokers) for each in company.by_datacenter[datacenter]))
    ports = {
        "broker": broker_port(company, host, place),
        "http": company.port(host, "broker_http") + BROKER_PORT_STEP * place,
    }
    listener = listener_protocol(company.security)
    decided = {
        "broker.id": number,
        "broker.rack": host.rack_name,
        **({"datacenter": datacenter} if datacenter in audited_datacenters(company) else {}),
        "listeners": f"{listener}://{bound_address(host, ports['broker'])}",
        "advertised.listeners": f"{listener}://{HostPort(host.address, ports['broker'])}",
        "http.listen": str(bound_address(host, ports["http"])),
        "log.dirs": ",".join(f"{disk}/broker-{number}" for disk in host.disks or (DATA,)),
        "zookeeper.connect": zookeeper_connect(company, datacenter),
        **broker_protection(company.security),
        **http_protection(company.security),
    }
    defaults = {
        "default.replication.factor": replicas,
        "min.insync.replicas": max(1, replicas - 1),
        "offsets.topic.replication.factor": replicas,
        # The mirror creates the topics of its destination, and not a client that comes first.
        **({"auto.create.topics.enable": False} if copied_datacenters(company, datacenter) else {}),
        **_open_paths(company),
    }
    return _service(company, host, ServiceRole.BROKER, str(number), defaults, decided, ports)


def _http_service(company: Company, host: CompanyHost, role: ServiceRole, decided: Mapping[str, Any]) -> CompanyService:
    port = company.port(host, role.value)
    own = {"http.listen": str(bound_address(host, port)), **decided, **http_protection(company.security)}
    return _service(company, host, role, host.datacenter, _open_paths(company), own, {"http": port})


def _open_paths(company: Company) -> Mapping[str, Any]:
    return OPEN_PATHS if company.security.sasl else {}


def _cluster(company: Company, datacenter: str, role: ServiceRole, prefix: str = "") -> dict[str, Any]:
    """Return the settings by which a service reaches the brokers of a datacenter."""
    protection = client_protection(company.security, role.value)
    settings = {"bootstrap.servers": bootstrap_of(company, datacenter), **protection}
    return {f"{prefix}{key}": value for key, value in settings.items()}


def _registry_settings(company: Company, host: CompanyHost) -> dict[str, Any]:
    login = login_protection(company.security, ServiceRole.REGISTRY.value)
    decided = {
        "host.name": host.address,
        "kafkastore.topic": SCHEMAS_TOPIC,
        **_cluster(company, host.datacenter, ServiceRole.REGISTRY),
        **{f"leader.{key}": value for key, value in login.items()},
    }
    mirror = company.mirror_into(host.datacenter)
    if mirror is None or not brings_schemas(mirror):
        return decided
    scheme = "https" if company.security.tls else "http"
    writers = [
        f"{scheme}://{HostPort(writer.address, company.port(writer, 'registry'))}"
        for source in mirror.sources
        for writer in company.hosts_with(ServiceRole.REGISTRY, source)
    ]
    return {**decided, "leader.eligibility": False, "leader.urls": writers}


def _mirror_settings(company: Company, mirror: CompanyMirror) -> dict[str, Any]:
    destination = mirror.destination
    decided: dict[str, Any] = _cluster(company, destination, ServiceRole.MIRROR, "destination.")
    if destination in audited_datacenters(company):
        decided["datacenter"] = destination
    if len(company.hosts_with(ServiceRole.MIRROR, destination)) > 1:
        decided |= {
            "zookeeper.connect": zookeeper_connect(company, destination),
            **zookeeper_client_protection(company.security, ServiceRole.MIRROR.value),
        }
    decided["topics"] = list(mirror.topics)
    if mirror.exclude:
        decided["topics.exclude"] = list(mirror.exclude)
    decided["sources"] = [{"name": name, **_cluster(company, name, ServiceRole.MIRROR)} for name in mirror.sources]
    return decided


def _audit_settings(company: Company, datacenter: str) -> dict[str, Any]:
    sources = copied_datacenters(company, datacenter)
    decided: dict[str, Any] = {"snapshot.dir": f"{DATA}/audit-{datacenter}", "spill.dir": f"{DATA}/audit-{datacenter}"}
    live = [{"name": name, **_cluster(company, name, ServiceRole.AUDIT)} for name in sources or (datacenter,)]
    decided["live"] = live
    if sources:
        decided["replica"] = [{"name": datacenter, **_cluster(company, datacenter, ServiceRole.AUDIT)}]
    return decided


def _load(company: Company, host: CompanyHost, load: CompanyLoad) -> CompanyService:
    registries = company.hosts_with(ServiceRole.REGISTRY, load.datacenter) or company.hosts_with(ServiceRole.REGISTRY)
    scheme = "https" if company.security.tls else "http"
    urls = [f"{scheme}://{HostPort(each.address, company.port(each, 'registry'))}" for each in registries]
    decided = {
        **_cluster(company, load.datacenter, ServiceRole.LOAD),
        "root": load.root,
        "topics.include": load.topics,
        **({"schema.registry.url": ",".join(urls), **login_protection(company.security, "load")} if urls else {}),
    }
    return _service(company, host, ServiceRole.LOAD, load.name, {}, decided, {}, load.settings)
