"""The inventory of a company for Ansible: hosts in groups by datacenter, with what the role `pipeline` needs. Pure."""

import json
import re
from typing import Any

from pipeline.deployment.company import Company, CompanyHost, ServiceRole
from pipeline.deployment.services import bootstrap_of, zookeeper_connect


def inventory_of(company: Company) -> str:
    """Return the inventory as YAML. It lies in the folder `ansible` of a render, and finds the others from there."""
    lines = ["all:", "  vars:", '    pipeline_rendered: "{{ inventory_dir | dirname }}"', "  children:"]
    for datacenter, hosts in company.by_datacenter.items():
        lines += [f"    {inventory_group(datacenter)}:", "      hosts:"]
        for host in hosts:
            lines.append(f"        {_scalar(host.name)}:")
            lines += [f"          {name}: {_scalar(value)}" for name, value in _variables(company, host).items()]
    return "\n".join(lines) + "\n"


def inventory_group(datacenter: str) -> str:
    """Return the name of a datacenter's group: Ansible takes letters, digits and underscores."""
    return "datacenter_" + re.sub(r"[^A-Za-z0-9_]", "_", datacenter)


def _variables(company: Company, host: CompanyHost) -> dict[str, Any]:
    first, *_ = company.hosts_with(ServiceRole.BROKER, host.datacenter)
    variables: dict[str, Any] = {
        "ansible_host": host.address,
        "pipeline_bootstrap": bootstrap_of(company, host.datacenter),
        "pipeline_admin_host": first.name,
    }
    if host.zookeeper is not None:
        variables["pipeline_zookeeper_servers"] = zookeeper_connect(company, host.datacenter).split(",")
    folders = [f"{disk}/broker-{broker}" for broker in host.brokers for disk in host.disks]
    if host.zookeeper is not None:
        settings = company.settings_of(ServiceRole.ZOOKEEPER, host.datacenter)
        folders += [settings["dataLogDir"]] if "dataLogDir" in settings else []
    if folders:
        variables["pipeline_log_dirs"] = folders
    if company.security.tls:
        variables["pipeline_tls"] = True
    if company.security.sasl and host is first:
        variables["pipeline_acls"] = f"acls/{host.datacenter}.sh"
    return variables


def _scalar(value: object) -> str:
    """Return a value as JSON, which is YAML."""
    return json.dumps(value)
