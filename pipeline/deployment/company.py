"""Declares the description of a company: datacenters, hosts, mirrors, loads, and what protects their services. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError

from pipeline.errors import ConfigurationError
from pipeline.settings import MAX_INT32, SettingsModel, flatten, hint, reason_of

MAX_ZOOKEEPER_ID = 255
_ADDRESS = r"^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$"


class ServiceRole(Enum):
    """Kind of a service, in the order in which services start."""

    ZOOKEEPER = "zookeeper"
    BROKER = "broker"
    REGISTRY = "registry"
    MIRROR = "mirror"
    AUDIT = "audit"
    LOAD = "load"


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
"""A name that is fit for hosts, folders, systemd's instances and clusters."""
FOLDER = r"^/[A-Za-z0-9._/@+-]*[A-Za-z0-9._@+-]$"
AbsolutePath = Annotated[str, StringConstraints(pattern=FOLDER)]
FurtherRole = Literal["registry", "mirror", "audit", "load"]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]


def _flat(value: object) -> object:
    try:
        return flatten(value) if isinstance(value, Mapping) else value
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _flat_by_role(value: object) -> object:
    return {role: _flat(table) for role, table in value.items()} if isinstance(value, Mapping) else value


FlatSettings = Annotated[dict[str, Any], BeforeValidator(_flat)]
SettingsByRole = Annotated[dict[ServiceRole, dict[str, Any]], BeforeValidator(_flat_by_role)]


class CompanyPorts(SettingsModel):
    """First port of each kind of service on a host. The next broker of the host has ports that are higher by 10."""

    service: ClassVar[str] = "ports"

    zookeeper: Port | None = Field(None, alias="zookeeper")
    """Port of ZooKeeper for clients. Default: 2181."""
    zookeeper_follower: Port | None = Field(None, alias="zookeeper_follower")
    """Port by which ZooKeeper's servers follow their leader. Default: 2888."""
    zookeeper_election: Port | None = Field(None, alias="zookeeper_election")
    """Port of the elections of ZooKeeper's servers. Default: 3888."""
    broker: Port | None = Field(None, alias="broker")
    """Port of the host's first broker. Default: 9092."""
    broker_http: Port | None = Field(None, alias="broker_http")
    """Port of the HTTP server of the host's first broker. Default: 9080."""
    mirror: Port | None = Field(None, alias="mirror")
    """Port of the mirror's HTTP server. Default: 9180."""
    registry: Port | None = Field(None, alias="registry")
    """Port of the schema registry. Default: 8081."""
    audit: Port | None = Field(None, alias="audit")
    """Port of the audit. Default: 8085."""

    def __str__(self) -> str:
        return ""  # for the table of settings: each port has its default


DEFAULT_PORTS: Mapping[str, int] = {
    "zookeeper": 2181,
    "zookeeper_follower": 2888,
    "zookeeper_election": 3888,
    "broker": 9092,
    "broker_http": 9080,
    "mirror": 9180,
    "registry": 8081,
    "audit": 8085,
}
BROKER_PORT_STEP = 10


class CompanyDatacenter(SettingsModel):
    """A datacenter: one cluster of brokers with its own ZooKeeper."""

    service: ClassVar[str] = "datacenter"

    name: Name = Field(alias="name")
    """Name of the datacenter and of its cluster, for mirror, audit and metrics. Keep it: the mirror's partition table
    refers to it."""
    settings: SettingsByRole = Field({}, alias="settings")
    """Settings of the services of this datacenter by role, `[datacenters.settings.broker]`; they win over those of the
    company."""


class CompanyHost(SettingsModel):
    """A host, and the services that run on it."""

    service: ClassVar[str] = "host"

    name: Name = Field(alias="name")
    """Name of the host, unique in the company."""
    address: str = Field(alias="address", pattern=_ADDRESS, max_length=253)
    """Host name or IP address at which other hosts and clients reach this one."""
    listen: str | None = Field(None, alias="listen", pattern=_ADDRESS, max_length=253)
    """IP address that services bind. Default: `address` if that is an IP address, else all addresses of the host."""
    datacenter: str = Field(alias="datacenter")
    """Name of the host's datacenter, one of `datacenters`."""
    rack: Name | None = Field(None, alias="rack")
    """Rack of the host: replicas of a partition are spread over racks. Default: the name of the host, so that its
    brokers never hold two replicas of a partition."""
    zookeeper: int | None = Field(None, alias="zookeeper", strict=True, ge=1, le=MAX_ZOOKEEPER_ID)
    """Id of the ZooKeeper server on this host, unique in the datacenter. Default: none runs here. Never change it."""
    brokers: tuple[Annotated[int, Field(strict=True, ge=0, le=MAX_INT32)], ...] = Field(
        (), alias="brokers", max_length=64
    )
    """Ids of the brokers on this host, unique in the datacenter; append new ones at the end, as the place gives the
    port. Default: none. Never change them."""
    disks: tuple[AbsolutePath, ...] = Field((), alias="disks", max_length=64)
    """Folders of the disks for the logs of brokers: each broker has a folder `broker-ID` on every disk. Default:
    `/var/lib/pipeline`."""
    further_roles: tuple[FurtherRole, ...] = Field((), alias="roles", max_length=4)
    """Further services on this host: `registry`, `mirror` (on several hosts of a datacenter they share the work),
    `audit`, and `load`, the loads of the datacenter. Default: none."""
    ports: CompanyPorts = Field(CompanyPorts.from_settings({}), alias="ports")
    """Ports on this host, if they differ from those of the company."""

    @property
    def rack_name(self) -> str:
        """The rack, or what stands for one."""
        return self.rack or self.name

    @cached_property
    def roles(self) -> frozenset[ServiceRole]:
        """Roles of the services on this host."""
        roles = {ServiceRole(role) for role in self.further_roles}
        if self.zookeeper is not None:
            roles.add(ServiceRole.ZOOKEEPER)
        if self.brokers:
            roles.add(ServiceRole.BROKER)
        return frozenset(roles)


class CompanyMirror(SettingsModel):
    """The mirror of a datacenter: what it copies there."""

    service: ClassVar[str] = "mirror"

    destination: str = Field(alias="destination")
    """Datacenter that gets the replicas; the mirror runs on its hosts."""
    sources: tuple[str, ...] = Field(alias="sources", min_length=1, max_length=100)
    """Datacenters to copy from."""
    topics: tuple[str, ...] = Field(alias="topics", min_length=1)
    """Regular expressions. A topic is mirrored if one of them matches its whole name. An internal topic (`_...`) is
    mirrored only if one of them is its name."""
    exclude: tuple[str, ...] = Field((), alias="topics_exclude")
    """Regular expressions. A topic is not mirrored if one of them matches its whole name."""

    def copies(self, topic: str) -> bool:
        """Return True if the mirror copies a topic. Patterns that are no regular expressions match nothing."""
        return self._included.has(topic) and not self._excluded.has(topic)

    @cached_property
    def _included(self) -> "_Patterns":
        named = {pattern.replace("\\", ""): pattern for pattern in self.topics}
        internal = frozenset(name for name, pattern in named.items() if name.startswith("_") and _fits(pattern, name))
        return _Patterns(self.topics, internal)

    @cached_property
    def _excluded(self) -> "_Patterns":
        return _Patterns(self.exclude, None)

    @property
    def is_of_internal_topics(self) -> bool:
        """True if the mirror copies internal topics alone."""
        return all(names_one_topic(pattern) and pattern.startswith("_") for pattern in self.topics)


def names_one_topic(pattern: str) -> bool:
    """Return True if a pattern is the name of a topic."""
    return re.fullmatch(r"(?:[A-Za-z0-9_-]|\\[.-])+", pattern) is not None


def _fits(pattern: str, topic: str) -> bool:
    return any(each.fullmatch(topic) for each in _compiled(pattern))


def _compiled(pattern: str) -> Iterator[re.Pattern[str]]:
    """Yield the compiled pattern; nothing if it is no regular expression."""
    with suppress(re.error):
        yield re.compile(pattern)


class _Patterns:
    """Patterns of topics: names as a set, others compiled once, as there may be thousands of each."""

    def __init__(self, patterns: Iterable[str], internal: frozenset[str] | None) -> None:
        """Keep the patterns. `internal`: the internal topics that they have; None if they match those like others."""
        self._names = {pattern.replace("\\", "") for pattern in patterns if names_one_topic(pattern)}
        self._others = [each for pattern in patterns if not names_one_topic(pattern) for each in _compiled(pattern)]
        self._internal = internal

    def has(self, topic: str) -> bool:
        """Return True if a pattern matches the topic."""
        if self._internal is not None and topic.startswith("_"):
            return topic in self._internal
        return topic in self._names or any(pattern.fullmatch(topic) for pattern in self._others)


class CompanyLoad(SettingsModel):
    """A load: topics of a datacenter, written to a file system at intervals."""

    service: ClassVar[str] = "load"

    name: Name = Field(alias="name")
    """Name of the load, of its settings file and of its timer."""
    datacenter: str = Field(alias="datacenter")
    """Datacenter whose topics are loaded, on its host with the role `load`."""
    root: str = Field(alias="root", min_length=1)
    """Directory of the topics: `hdfs://host:port/path`, `s3://bucket/prefix` or `file:///path`."""
    topics: str = Field(".*", alias="topics", min_length=1)
    """Regular expression: topics are loaded whose whole name matches, but none whose name begins with `_`."""
    settings: FlatSettings = Field({}, alias="settings")
    """Further settings of this load, `[loads.settings]`."""


class CompanySecurity(SettingsModel):
    """Protection of all services. Secrets are in files on the hosts, never in the description."""

    service: ClassVar[str] = "security"

    tls: bool = Field(default=False, alias="tls")
    """True if all connections use TLS, among ZooKeeper's servers, too."""
    sasl: bool = Field(default=False, alias="sasl")
    """True if clients and services log in, and ACLs decide what each may do. Needs `tls`."""
    keystore: AbsolutePath = Field("/etc/pipeline/secrets/server.pem", alias="keystore")
    """File with the private key of the host and its certificate chain, in PEM. The certificate names `address`."""
    truststore: AbsolutePath = Field("/etc/pipeline/secrets/ca.pem", alias="truststore")
    """File with the certificates of the authorities that sign those of the hosts, in PEM."""
    passwords: AbsolutePath = Field("/etc/pipeline/secrets/passwords.properties", alias="passwords")
    """File with the passwords of services, a line `USER=PASSWORD` for each user: `broker`, `admin`, `mirror`,
    `registry`, `audit`, `load`. A host needs the lines of its own services; a host with a broker needs all."""
    http_users: AbsolutePath = Field("/etc/pipeline/secrets/http-users", alias="http_users")
    """File with the users of HTTP servers and hashes of their passwords, made by `pipeline http-user`."""

    def __str__(self) -> str:
        return "set" if self.tls or self.sasl else ""


class Company(SettingsModel):
    """A company: datacenters, hosts, and what connects them. `company_of` reads one."""

    service: ClassVar[str] = "company"

    datacenters: tuple[CompanyDatacenter, ...] = Field(alias="datacenters", min_length=1, max_length=1000)
    """Tables `[[datacenters]]`."""
    hosts: tuple[CompanyHost, ...] = Field(alias="hosts", min_length=1, max_length=10_000)
    """Tables `[[hosts]]`."""
    mirrors: tuple[CompanyMirror, ...] = Field((), alias="mirrors", max_length=1000)
    """Tables `[[mirrors]]`, one for each datacenter that gets replicas."""
    loads: tuple[CompanyLoad, ...] = Field((), alias="loads", max_length=1000)
    """Tables `[[loads]]`."""
    security: CompanySecurity = Field(CompanySecurity.from_settings({}), alias="security")
    """Table `[security]`."""
    ports: CompanyPorts = Field(CompanyPorts.from_settings({}), alias="ports")
    """Table `[ports]`: ports on all hosts."""
    settings: SettingsByRole = Field({}, alias="settings")
    """Settings of all services of a role, `[settings.broker]` and so on, under the names that these services give
    them."""

    def port(self, host: CompanyHost, name: str) -> int:
        """Return a port by its name in `CompanyPorts`: the host's, else the company's, else the default."""
        own: int | None = getattr(host.ports, name) or getattr(self.ports, name)
        return own or DEFAULT_PORTS[name]

    @cached_property
    def by_datacenter(self) -> Mapping[str, tuple[CompanyHost, ...]]:
        """Hosts of each datacenter, in the order of the description."""
        found: dict[str, list[CompanyHost]] = {each.name: [] for each in self.datacenters}
        for host in self.hosts:
            found[host.datacenter].append(host)
        return {name: tuple(hosts) for name, hosts in found.items()}

    @cached_property
    def _by_role(self) -> Mapping[tuple[ServiceRole, str | None], tuple[CompanyHost, ...]]:
        """Hosts by role and datacenter, and those of all datacenters by None."""
        found: defaultdict[tuple[ServiceRole, str | None], list[CompanyHost]] = defaultdict(list)
        for host in self.hosts:
            for role in host.roles:
                found[role, None].append(host)
                found[role, host.datacenter].append(host)
        return {key: tuple(hosts) for key, hosts in found.items()}

    def hosts_with(self, role: ServiceRole, datacenter: str | None = None) -> tuple[CompanyHost, ...]:
        """Return the hosts with a role: of one datacenter, or of all."""
        return self._by_role.get((role, datacenter), ())

    def mirror_into(self, datacenter: str) -> CompanyMirror | None:
        """Return the mirror of a datacenter."""
        return next((mirror for mirror in self.mirrors if mirror.destination == datacenter), None)

    def settings_of(self, role: ServiceRole, datacenter: str) -> dict[str, Any]:
        """Return the settings that the description gives to the services of a role in a datacenter."""
        (own,) = (each.settings.get(role, {}) for each in self.datacenters if each.name == datacenter)
        return {**self.settings.get(role, {}), **own}


_MODELS: Mapping[str, type[SettingsModel]] = {
    "datacenters": CompanyDatacenter,
    "hosts": CompanyHost,
    "mirrors": CompanyMirror,
    "loads": CompanyLoad,
    "security": CompanySecurity,
    "ports": CompanyPorts,
}


def company_of(document: Mapping[str, Any]) -> tuple[Company | None, tuple[str, ...]]:
    """Return the company that a document describes, or None and all faults of its form."""
    try:
        return Company.model_validate(dict(document)), ()
    except ValidationError as error:
        entries: list[Any] = error.errors(include_url=False)
        return None, tuple(dict.fromkeys(_fault(document, entry) for entry in entries))
    except RecursionError:
        return None, ("the description has tables within tables, deeper than any setting is",)


def _fault(document: Mapping[str, Any], entry: Any) -> str:
    place = ".".join(_places(document, entry["loc"]))
    if entry["type"] == "missing":
        return f"{place} is missing"
    if entry["type"] == "extra_forbidden":
        tables = [_MODELS[part] for part in entry["loc"][:-1] if part in _MODELS]
        model = tables[-1] if tables else Company
        return f"{place} is no part of the description{hint(str(entry['loc'][-1]), model)}"
    if entry["type"] == "enum":
        return f"{place}: there is no such role; roles are {', '.join(role.value for role in ServiceRole)}"
    is_pattern = entry["type"] == "string_pattern_mismatch"
    reason = "has letters that are not allowed there" if is_pattern else reason_of(entry)
    given = "" if isinstance(entry["input"], Mapping | list) else f" (given: {entry['input']!r})"
    return f"{place} {reason}{given}"


def _places(document: Any, loc: tuple[Any, ...]) -> Iterator[str]:
    """Yield the parts of a place for people: items of a list by their names."""
    here = document
    for part in loc:
        if isinstance(part, int):
            here = here[part] if isinstance(here, list | tuple) and part < len(here) else None
            name = here.get("name", here.get("destination")) if isinstance(here, Mapping) else None
            yield str(name) if isinstance(name, str) else str(part + 1)
        elif part != "[key]":
            here = here.get(part) if isinstance(here, Mapping) else None
            yield str(part)
