"""Faults of a description whose form is right: what its parts say of each other. Pure.

All faults are found at once. Each is a sentence that names the part, and says what to do.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from itertools import combinations
from posixpath import normpath

from pipeline.deployment.company import FOLDER, Company, CompanyMirror, ServiceRole, names_one_topic
from pipeline.deployment.files import NAMES_BESIDE_HOSTS
from pipeline.deployment.inventory import inventory_group
from pipeline.deployment.services import (
    CompanyService,
    bound_address,
    brings_schemas,
    further_folders,
    is_ip,
    services_of,
)

DEFAULT_REPLICAS = ("default.replication.factor", "offsets.topic.replication.factor")
HIDDEN = ("/tmp", "/var/tmp", "/home", "/root", "/run/user", "/dev", "/proc", "/sys")
"""Folders that services do not see or cannot write, by the protection of their units (deploy/systemd)."""
MAX_WAYS = 20_000
"""Ways through mirrors that are followed in the search for circles and for topics that come twice."""


def faults_of(company: Company, *checks: Callable[[Company], Iterable[str]]) -> tuple[str, ...]:
    """Return all faults of a description, in the order of its parts; none if services can be rendered.

    `checks` find further faults of a company whose services can be told apart and have addresses.
    """
    of_names = [*_names(company), *_references(company), *_addresses(company)]
    if of_names:  # services of such a company cannot be told apart or reached
        return tuple(of_names)
    services = services_of(company)
    missing = tuple(_missing_servers(company))
    return (
        *_idle_hosts(company),
        *_ids(company),
        *_machines(services),
        *_folders(company, services),
        *missing,
        *_ensembles(company),
        *_replicas(company, services),
        *_mirrors(company),
        *_mirrored_topics(company),
        *_registries(company),
        *_loads(company),
        *_decided_settings(services),
        *_security(company),
        *(fault for check in checks for fault in check(company) if not missing),
    )


def _twice(values: Iterable[str]) -> Iterator[str]:
    return (value for value, count in Counter(values).items() if count > 1)


def _alike(names: Iterable[str], key: Callable[[str], str]) -> Iterator[str]:
    """Find names that are not the same, and that become the same by `key` and in small letters."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        found[key(name).lower()].add(name)
    return (" and ".join(sorted(alike)) for alike in found.values() if len(alike) > 1)


def _names(company: Company) -> Iterator[str]:
    for name in _twice(each.name for each in company.datacenters):
        yield f"datacenters: the name {name} is given twice; give each datacenter its own"
    for name in _twice(host.name for host in company.hosts):
        yield f"hosts: the name {name} is given twice; give each host its own"
    for name in _twice(load.name for load in company.loads):
        yield f"loads: the name {name} is given twice; give each load its own"
    for name in _twice(mirror.destination for mirror in company.mirrors):
        yield f"mirrors: two have the destination {name}; make them one table"
    groups = {"all", "ungrouped", *(inventory_group(each.name) for each in company.datacenters)}
    for host in company.hosts:
        if host.name in groups:
            yield f"hosts.{host.name}: Ansible has a group of hosts of this name; choose another name"
        if host.name.lower() in NAMES_BESIDE_HOSTS:
            yield f"hosts.{host.name}: this is a name of a file or folder beside those of hosts; choose another name"
    for names in _alike((each.name for each in company.datacenters), inventory_group):
        yield f"datacenters: {names} would be one group of hosts for Ansible; change a letter or digit of one"
    for names in _alike((host.name for host in company.hosts), str):
        yield f"hosts: {names} differ in capital letters alone; change another letter of one"


def _references(company: Company) -> Iterator[str]:
    known = [each.name for each in company.datacenters]

    def unknown(place: str, name: str) -> Iterator[str]:
        if name not in known:
            yield f"{place}: there is no datacenter {name}; datacenters are {', '.join(known)}"

    for host in company.hosts:
        yield from unknown(f"hosts.{host.name}.datacenter", host.datacenter)
    for mirror in company.mirrors:
        yield from unknown("mirrors.destination", mirror.destination)
        for source in mirror.sources:
            yield from unknown(f"mirrors.{mirror.destination}.sources", source)
        for source in _twice(mirror.sources):
            yield f"mirrors.{mirror.destination}.sources: {source} is named twice"
        if mirror.destination in mirror.sources:
            yield f"mirrors.{mirror.destination}.sources: a datacenter cannot be a source of its own mirror"
    for load in company.loads:
        yield from unknown(f"loads.{load.name}.datacenter", load.datacenter)


def _addresses(company: Company) -> Iterator[str]:
    """Find addresses that look like numbers, and are none: a service would take them for names of hosts."""
    for host in company.hosts:
        for key, address in (("address", host.address), ("listen", host.listen)):
            if address is not None and re.fullmatch(r"[0-9.]+|.*:.*", address) and not is_ip(address):
                yield f"hosts.{host.name}.{key}: {address} is no IP address; give a port in ports"


def _idle_hosts(company: Company) -> Iterator[str]:
    for host in company.hosts:
        if not host.roles:
            yield f"hosts.{host.name}: nothing runs there; give it zookeeper, brokers or roles, or remove it"


def _ids(company: Company) -> Iterator[str]:
    for name, hosts in company.by_datacenter.items():
        for number in _twice(str(broker) for host in hosts for broker in host.brokers):
            yield f"datacenters.{name}: two brokers have the id {number}"
        for number in _twice(str(host.zookeeper) for host in hosts if host.zookeeper is not None):
            yield f"datacenters.{name}: two ZooKeeper servers have the id {number}"


def _machines(services: Sequence[CompanyService]) -> Iterator[str]:
    """Find what two services of one machine would share: a port, a name with its settings and data, a folder."""
    ports: defaultdict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for service in services:
        host, machine = service.host, _one_spelling(service.host.address)
        names[machine, service.name].append(host.name)
        for kind, port in service.ports.items():
            name = f"{host.name}/{service.name}"
            bound = _one_spelling(bound_address(host, port).host)
            ports[machine, port].append((bound, f"{name} (HTTP)" if kind == "http" else name))
            if port > 65535:
                yield f"{name}: port {port} does not exist; lower the host's ports"
    for (machine, port), found in ports.items():
        count = Counter(address for address, _ in found)
        users = [name for address, name in found if count["0.0.0.0"] or count[address] > 1]
        if len(users) > 1:
            yield f"port {port} of {machine} is taken twice: by {' and by '.join(users)}; set ports of the host"
    for (machine, name), hosts in names.items():
        if len(hosts) > 1:
            yield (
                f"hosts {' and '.join(hosts)} have one address, {machine}, and each has {name}: they would share its "
                "settings and its data; give one another id"
            )


def _one_spelling(address: str) -> str:
    """Return an address as all spellings of it are compared."""
    try:
        return str(ip_address(address))
    except ValueError:
        return "127.0.0.1" if address.lower() == "localhost" else address.lower()


def _folders(company: Company, services: Sequence[CompanyService]) -> Iterator[str]:
    """Find folders that units cannot give to services, and disks of a host within each other's logs."""
    named = [(f"hosts.{host.name}.disks", disk) for host in company.hosts for disk in host.disks]
    named += [(f"settings of {service.name}", folder) for service in services for folder in further_folders(service)]
    for place, folder in dict.fromkeys(named):
        hidden = next((each for each in HIDDEN if f"{normpath(folder)}/".startswith(f"{each}/")), None)
        if hidden is not None:
            yield f"{place}: {folder} is in {hidden}, which systemd's units hide from services; take another folder"
        elif re.fullmatch(FOLDER, folder) is None:
            yield f"{place}: {folder!r} is not the path of a folder, or has letters that are not allowed there"
    for host in company.hosts:
        folders = [normpath(f"{disk}/broker-{broker}") for disk in host.disks for broker in host.brokers]
        for inner in folders:
            for outer in folders:
                if inner.startswith(f"{outer}/"):
                    yield f"hosts.{host.name}.disks: {inner} lies in {outer}, which holds the log of a broker alone"


def _missing_servers(company: Company) -> Iterator[str]:
    for each in company.datacenters:
        if not company.hosts_with(ServiceRole.BROKER, each.name):
            yield f"datacenters.{each.name}: no host has brokers; set brokers = [ID] on one or more"
        if not company.hosts_with(ServiceRole.ZOOKEEPER, each.name):
            yield f"datacenters.{each.name}: no host has a ZooKeeper server; set zookeeper = ID on one, three or five"


def _ensembles(company: Company) -> Iterator[str]:
    for name, hosts in company.by_datacenter.items():
        servers = sum(host.zookeeper is not None for host in hosts)
        if servers and servers % 2 == 0:
            yield (
                f"datacenters.{name}: {servers} ZooKeeper servers tolerate no more failures than {servers - 1}; use an "
                "odd number"
            )


def _replicas(company: Company, services: Sequence[CompanyService]) -> Iterator[str]:
    for name, hosts in company.by_datacenter.items():
        brokers = [each for each in services if each.role is ServiceRole.BROKER and each.host.datacenter == name]
        racks = {host.rack_name for host in hosts if host.brokers}
        with_rack = [host for host in hosts if host.brokers and host.rack is not None]
        if with_rack and len(with_rack) < sum(bool(host.brokers) for host in hosts):
            lacking = next(host.name for host in hosts if host.brokers and host.rack is None)
            yield f"hosts.{lacking}.rack is missing: other hosts of {name} have one; give all hosts racks, or none"
        if not brokers:
            continue
        settings = brokers[0].settings
        for key in DEFAULT_REPLICAS:
            wanted = _whole(settings[key])
            if wanted is None:
                continue  # the broker's own check says what is wrong
            if wanted > len(brokers):
                yield f"datacenters.{name}: {key} = {wanted}, and there are {len(brokers)} brokers"
            elif wanted > len(racks):
                yield (
                    f"datacenters.{name}: {key} = {wanted}, and there are {len(racks)} racks (without racks, hosts): "
                    "two replicas of a partition would be lost together"
                )
        replicas, least = _whole(settings[DEFAULT_REPLICAS[0]]), _whole(settings["min.insync.replicas"])
        if replicas is not None and least is not None and (least > replicas or least == replicas > 1):
            yield (
                f"datacenters.{name}: min.insync.replicas = {least}, and default.replication.factor = {replicas}: "
                "writes would fail while any broker is restarted; set it lower"
            )


def _whole(value: object) -> int | None:
    """Return the number that a broker reads from a setting: `3`, `3.0` and `"3"` are the same to it."""
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return None


def _mirrors(company: Company) -> Iterator[str]:
    for mirror in company.mirrors:
        if not company.hosts_with(ServiceRole.MIRROR, mirror.destination):
            yield f'mirrors.{mirror.destination}: no host there runs it; add "mirror" to the roles of one'
        for pattern in (*mirror.topics, *mirror.exclude):
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"mirrors.{mirror.destination}.topics: {pattern} is not a regular expression: {error}"
    for host in company.hosts_with(ServiceRole.MIRROR):
        if company.mirror_into(host.datacenter) is None:
            yield (
                f"hosts.{host.name}.roles: mirror has nothing to do; no table [[mirrors]] has destination "
                f"{host.datacenter}"
            )


def _mirrored_topics(company: Company) -> Iterator[str]:
    """Find topics that would come back to where they were produced, or come to a datacenter by two ways."""
    into = {mirror.destination: mirror for mirror in company.mirrors}
    ways = _ways(into)
    if ways is None:
        yield "mirrors: too many ways lead from datacenter to datacenter to be searched for circles"
        return
    circles: set[frozenset[str]] = set()
    former: defaultdict[tuple[str, str], list[list[str]]] = defaultdict(list)
    for way in ways:
        if way[-1] in into and way[0] in into[way[-1]].sources and frozenset(way) not in circles:
            topic = _common_topic([into[name] for name in way])
            if topic is not None:
                circles.add(frozenset(way))
                circle = _shown([*way, way[0]])
                yield f"mirrors: {topic} would go in a circle: {circle}; exclude it from one mirror (topics_exclude)"
        for other in former[way[0], way[-1]]:
            names = {*way[:-1], *other[:-1]}
            topic = _common_topic([into[name] for name in names]) if len(names) == len(way) + len(other) - 3 else None
            if topic is not None:
                yield (
                    f"mirrors: {topic} would come to {way[0]} twice, its records doubled: {_shown(other)} and "
                    f"{_shown(way)}; exclude it from one mirror (topics_exclude), or take a source away"
                )
                break
        else:
            former[way[0], way[-1]].append(way)


def _ways(into: Mapping[str, CompanyMirror]) -> Sequence[list[str]] | None:
    """Return the ways that topics go through mirrors, each from its end, the shorter ones first; None if too many."""
    ways = [[name, source] for name, mirror in into.items() for source in mirror.sources]
    for way in ways:  # grows
        if len(ways) > MAX_WAYS:
            return None
        mirror = into.get(way[-1])
        if mirror is not None and _common_topic([into[name] for name in way]) is not None:
            ways += [[*way, source] for source in mirror.sources if source not in way]
    return ways


def _shown(way: Sequence[str]) -> str:
    return " > ".join(reversed(way))


def _common_topic(mirrors: Sequence[CompanyMirror]) -> str | None:
    """Return a topic that all mirrors copy, or words for the topics of their patterns; None if there is none.

    Patterns that are no plain names may have topics in common unless they begin with different texts, or are excluded:
    an answer is right, or too strict.
    """
    for name in (p.replace("\\", "") for mirror in mirrors for p in mirror.topics if names_one_topic(p)):
        if all(mirror.copies(name) for mirror in mirrors):
            return f"the topic {name}"
    excluded = [pattern for mirror in mirrors for pattern in mirror.exclude]
    beginnings = {""}
    for mirror in mirrors:
        own = [_beginning(p) for p in mirror.topics if not names_one_topic(p) and not _is_excluded(p, excluded)]
        pairs = [sorted((one, other), key=len) for one in beginnings for other in own]
        beginnings = {longer for shorter, longer in pairs if longer.startswith(shorter)}
    return "a topic that several patterns match" if beginnings else None


def _beginning(pattern: str) -> str:
    """Return the text with which each name begins that a pattern matches, as far as it is told easily."""
    if re.search(r"[|()?]", pattern):
        return ""
    found = re.match(r"(?:[A-Za-z0-9_-]|\\[.-])*(?![*{])", pattern)
    return found[0].replace("\\", "") if found else ""


def _is_excluded(pattern: str, excluded: Sequence[str]) -> bool:
    """Return True if the exclusions take all topics of a pattern: by its own text, or by a text and `.*`."""
    return any(
        each == pattern
        or (each.endswith(".*") and names_one_topic(each[:-2]) and _beginning(pattern).startswith(_beginning(each)))
        for each in excluded
    )


def _registries(company: Company) -> Iterator[str]:
    names = sorted({host.datacenter for host in company.hosts_with(ServiceRole.REGISTRY)})
    writers = [name for name in names if not brings_schemas(company.mirror_into(name))]
    if len(writers) > 1:
        yield (
            f"registries of {' and of '.join(writers)} would give the same ids to different schemas: let a mirror "
            f"bring _schemas from {writers[0]} to the others (topics of [[mirrors]])"
        )
    for name in names:
        mirror = company.mirror_into(name)
        if mirror is None or not brings_schemas(mirror):
            continue
        if len(mirror.sources) > 1:
            yield f"mirrors.{name}: _schemas comes from {len(mirror.sources)} sources, and a registry reads one copy"
        elif not company.hosts_with(ServiceRole.REGISTRY, mirror.sources[0]):
            yield f"mirrors.{name}: _schemas comes from {mirror.sources[0]}, where no registry runs"


def _loads(company: Company) -> Iterator[str]:
    for load in company.loads:
        hosts = company.hosts_with(ServiceRole.LOAD, load.datacenter)
        if not hosts:
            yield f'loads.{load.name}: no host of {load.datacenter} runs it; add "load" to the roles of one'
        elif len(hosts) > 1:
            named = " and ".join(host.name for host in hosts)
            yield f"loads.{load.name}: {named} would both run it; give one of them the role load"
    for one, other in combinations(company.loads, 2):
        is_one_root = one.root.rstrip("/") == other.root.rstrip("/") and one.datacenter != other.datacenter
        if is_one_root and (one.topics == other.topics or ".*" in {one.topics, other.topics}):
            yield (
                f"loads.{one.name} and loads.{other.name} write the same topics of {one.datacenter} and of "
                f"{other.datacenter} below one root: a table holds a topic of one cluster; give each datacenter a root"
            )
    at_work = {load.datacenter for load in company.loads}
    for host in company.hosts_with(ServiceRole.LOAD):
        if host.datacenter not in at_work:
            yield (
                f"hosts.{host.name}.roles: load has nothing to do; no table [[loads]] has datacenter {host.datacenter}"
            )


def _decided_settings(services: Sequence[CompanyService]) -> Iterator[str]:
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for service in services:
        for key in filter(partial(_is_decided, service), service.given):
            found[service.role.value, key].append(service.name)
    for (role, key), _ in sorted(found.items()):
        yield f"settings.{role}: {key} follows from the description of hosts; remove it"


def _is_decided(service: CompanyService, key: str) -> bool:
    """Return True if a setting is not the operator's; ZooKeeper names further ports and servers in ways of its own."""
    is_of_ensemble = key.startswith("server.") or key.removesuffix("Address") in {"clientPort", "secureClientPort"}
    return key in service.decided or (service.role is ServiceRole.ZOOKEEPER and is_of_ensemble)


def _security(company: Company) -> Iterator[str]:
    if company.security.sasl and not company.security.tls:
        yield "security.sasl needs security.tls = true: passwords would go over the wire in clear"
