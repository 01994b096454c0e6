"""The files of a company by their paths below the folder of a render: settings, unit names, targets, inventory. Pure.

The same description always gives the same text. No file holds a secret.
"""

import json
from posixpath import normpath

from pipeline.deployment.company import Company, CompanyHost, ServiceRole
from pipeline.deployment.inventory import inventory_of
from pipeline.deployment.protection import ADMIN_USER, client_protection, login_protection
from pipeline.deployment.services import DATA, CompanyService, audited_datacenters, further_folders, services_of
from pipeline.settings import settings_text

LIST_NAME = "rendered-files"
"""File that names all files of a render."""
UNFINISHED_NAME = "unfinished-render"
"""File that is there while a render changes others, and after one that did not come to its end."""
NAMES_BESIDE_HOSTS = frozenset({"acls", "ansible", "prometheus", LIST_NAME, UNFINISHED_NAME})
SETTINGS_FOLDER = "etc/pipeline"
UNITS_FOLDER = "etc/systemd/system"
ZOOKEEPER_USERS = "/etc/pipeline/secrets/zookeeper.jaas"


def rendered_files(company: Company, source: str) -> dict[str, str]:
    """Return the text of each file by its path. `source`: name of the description, for the headers."""
    files: dict[str, str] = {}
    for host in company.hosts:
        files[f"{host.name}/units"] = ""
        if company.security.tls and host.brokers:
            files[f"{host.name}/{SETTINGS_FOLDER}/admin.properties"] = _admin_file(company, source)
    for service in services_of(company):
        suffix = "properties" if service.role is ServiceRole.ZOOKEEPER else "toml"
        files[f"{service.host.name}/{SETTINGS_FOLDER}/{service.name}.{suffix}"] = _settings_file(service, source)
        if drop_in := _drop_in(company, service):
            path = f"{service.host.name}/{UNITS_FOLDER}/{unit_of(service, of_timer=False)}.d/render.conf"
            files[path] = header(source) + "[Service]\n" + drop_in
        files[f"{service.host.name}/units"] += f"{unit_of(service)}\n"
    files["ansible/inventory.yml"] = header(source) + inventory_of(company)
    files["prometheus/targets.json"] = _targets(company)
    return dict(sorted(files.items()))


def header(source: str) -> str:
    """Return the first line of a file that can hold comments."""
    source = "".join(letter if letter.isprintable() else "?" for letter in source)
    return f"# Generated from {source} by `pipeline deploy render`. Change {source}, not this file.\n"


def unit_of(service: CompanyService, *, of_timer: bool = True) -> str:
    """Return the name of the systemd unit of a service; `of_timer`: of its timer, if it has one."""
    kind = "timer" if service.role is ServiceRole.LOAD and of_timer else "service"
    return f"pipeline-{service.role.value}@{service.instance}.{kind}"


def _drop_in(company: Company, service: CompanyService) -> str:
    """Return what the unit of a service needs beside the package's own; empty if that is enough."""
    lines: list[str] = []
    folders = list(further_folders(service))
    if service.role is ServiceRole.BROKER:
        folders = [disk for disk in service.host.disks if normpath(disk) != DATA]
    elif service.role is ServiceRole.LOAD:
        folders = [f"-{folder}" for folder in folders]  # the load says best that it is missing
    if folders:
        lines.append(f"ReadWritePaths={' '.join(folders)}\n")
    if service.role is ServiceRole.ZOOKEEPER and company.security.sasl:
        lines.append(f"Environment=SERVER_JVMFLAGS=-Djava.security.auth.login.config={ZOOKEEPER_USERS}\n")
    if service.role is ServiceRole.LOAD and service.host.datacenter in audited_datacenters(company):
        lines.append(f'Environment="AUDIT_OPTIONS=--datacenter {service.host.datacenter}"\n')
    return "".join(lines)


def _settings_file(service: CompanyService, source: str) -> str:
    if service.role is ServiceRole.ZOOKEEPER:
        return header(source) + "".join(f"{key}={_property(value)}\n" for key, value in service.settings.items())
    return header(source) + "\n" + settings_text(service.settings)


def _admin_file(company: Company, source: str) -> str:
    """Return the client settings of an administrator, for commands on the host."""
    users = (client_protection(company.security, ADMIN_USER), login_protection(company.security, ADMIN_USER))
    settings = {key: value for each in users for key, value in each.items()}
    return header(source) + "".join(f"{key}={value}\n" for key, value in settings.items())


def _property(value: object) -> str:
    """Return a value as Java reads it from a file of properties: in Latin-1, with escapes."""
    if isinstance(value, bool):
        return str(value).lower()
    units = str(value).replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2))
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)


def _targets(company: Company) -> str:
    """Return what Prometheus scrapes, as its file_sd reads it: the HTTP server of each service that has one."""
    groups = [
        {
            "targets": [f"{_in_url(service.host)}:{service.ports['http']}"],
            "labels": {
                "job": service.role.value,
                "datacenter": service.host.datacenter,
                "host": service.host.name,
                "service": service.name,
                "__scheme__": "https" if company.security.tls else "http",
            },
        }
        for service in services_of(company)
        if "http" in service.ports
    ]
    return json.dumps(groups, indent=2) + "\n"


def _in_url(host: CompanyHost) -> str:
    return f"[{host.address}]" if ":" in host.address else host.address
