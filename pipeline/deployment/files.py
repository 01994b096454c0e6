"""The files of a company by their paths below the folder of a render: settings, unit names, targets, inventory. Pure.

The same description always gives the same text. No file holds a secret.
"""

import json

from pipeline.deployment.company import Company, CompanyHost, ServiceRole
from pipeline.deployment.services import CompanyService, services_of
from pipeline.settings import settings_text

FOLDERS_BESIDE_HOSTS = frozenset({"ansible", "prometheus"})
SETTINGS_FOLDER = "etc/pipeline"


def rendered_files(company: Company, source: str) -> dict[str, str]:
    """Return the text of each file by its path. `source`: name of the description, for the headers."""
    files: dict[str, str] = {}
    for host in company.hosts:
        files[f"{host.name}/units"] = ""
    for service in services_of(company):
        suffix = "properties" if service.role is ServiceRole.ZOOKEEPER else "toml"
        files[f"{service.host.name}/{SETTINGS_FOLDER}/{service.name}.{suffix}"] = _settings_file(service, source)
        files[f"{service.host.name}/units"] += f"{unit_of(service)}\n"
    files["prometheus/targets.json"] = _targets(company)
    return dict(sorted(files.items()))


def header(source: str) -> str:
    """Return the first line of a file that can hold comments."""
    return f"# Generated from {source} by `pipeline deploy render`. Change {source}, not this file.\n"


def unit_of(service: CompanyService) -> str:
    """Return the name of the systemd unit of a service: of the timer, if it has one."""
    kind = "timer" if service.role is ServiceRole.LOAD else "service"
    return f"pipeline-{service.role.value}@{service.instance}.{kind}"


def _settings_file(service: CompanyService, source: str) -> str:
    if service.role is ServiceRole.ZOOKEEPER:
        return header(source) + "".join(f"{key}={_property(value)}\n" for key, value in service.settings.items())
    return header(source) + "\n" + settings_text(service.settings)


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
