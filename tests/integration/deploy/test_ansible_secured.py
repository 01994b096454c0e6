"""The playbooks with TLS, logins and ACLs: rolled out, restarted under load, new certificates, new passwords."""

import socket
import ssl
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from pipeline.cli.secured.certificates import Authority
from tests.support.ansible_hosts import address_of, ansible_hosts
from tests.support.ansible_site import (
    SITE_BOOTSTRAP,
    SITE_NAMES,
    SITE_ZOOKEEPERS,
    AnsibleSite,
    producing,
    succeed,
)
from tests.support.clients import wait_for
from tests.support.company_secrets import secrets_of_all_hosts, secrets_of_host
from tests.support.debian import DebianRoot

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SECURITY = "[security]\ntls = true\nsasl = true\n"
AUTHORITY = Authority()
CHANGE_TIMEOUT_S = 60.0


def write_secrets(directory: Path, suffix: str = "password") -> Path:
    """Write new keys and certificates, and the passwords, of all hosts."""
    shared = secrets_of_all_hosts(AUTHORITY, suffix)
    for number, name in enumerate(SITE_NAMES, 1):
        (directory / name).mkdir(parents=True, exist_ok=True)
        for file, text in {**shared, **secrets_of_host(AUTHORITY, name, address_of(number))}.items():
            (directory / name / file).write_text(text)
    return directory


def client_config(directory: Path) -> Path:
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    config = directory / "client.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={directory}/ca.pem\n"
        "sasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=admin-password\n"
    )
    return config


def served_certificate(number: int, port: int) -> int:
    """Return the serial number of the certificate that a server shows."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate)
    with (
        socket.create_connection((address_of(number), port), 10) as plain,
        context.wrap_socket(plain, server_hostname=address_of(number)) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def as_admin(site: AnsibleSite, *command: str) -> str:
    return site.run("env", "PIPELINE_CLIENT_CONFIG=/etc/pipeline/admin.properties", *command)


def test_a_secured_cluster_is_rolled_out_restarted_and_given_new_secrets(installed: DebianRoot, tmp_path: Path) -> None:
    secrets = write_secrets(tmp_path / "secrets")
    with ansible_hosts(tmp_path, installed, SITE_NAMES) as hosts:
        site = AnsibleSite(tmp_path, hosts)
        site.render(SECURITY)
        succeed(site.play("site.yml", pipeline_secrets=secrets))
        again = succeed(site.play("site.yml", pipeline_secrets=secrets))
        assert again.count("changed") == dict.fromkeys(SITE_NAMES, 0), again.output
        as_admin(site, "pipeline", "topic", "create", "clicks", "--replication-factor", "3", "-b", SITE_BOOTSTRAP)
        with producing(tmp_path, client_config(tmp_path)):
            before = [*site.starts(), *site.starts(SITE_ZOOKEEPERS)]
            succeed(site.play("rolling-restart.yml"))
            assert not {*site.starts(), *site.starts(SITE_ZOOKEEPERS)} & {*before, "0"}
            take_new_certificates(site, secrets)
        take_new_passwords(site, secrets)


def take_new_certificates(site: AnsibleSite, secrets: Path) -> None:
    """All servers show them, and none is restarted for it."""
    before = [*site.starts(), *site.starts(SITE_ZOOKEEPERS)]
    servers = [(number, port) for number in (1, 2, 3) for port in (9092, 9080, 2181, 3888)]
    former = {server: served_certificate(*server) for server in servers}
    played = succeed(site.play("site.yml", pipeline_secrets=write_secrets(secrets)))
    assert played.count("changed") == dict.fromkeys(SITE_NAMES, 1), played.output
    for server, serial in former.items():
        wait_for(f"a new certificate at {server}", partial(_is_new, server, serial), CHANGE_TIMEOUT_S)
    assert [*site.starts(), *site.starts(SITE_ZOOKEEPERS)] == before


def _is_new(server: tuple[int, int], former: int) -> bool:
    return served_certificate(*server) != former


def take_new_passwords(site: AnsibleSite, secrets: Path) -> None:
    """Everything is stopped for them: brokers know one password of each user."""
    for host in site.hosts.hosts.values():
        host.run("systemctl", "stop", "pipeline.target")
    succeed(site.play("site.yml", pipeline_secrets=write_secrets(secrets, "new-word")))
    as_admin(site, "pipeline", "cluster", "describe", "-b", SITE_BOOTSTRAP)
    again = succeed(site.play("site.yml", pipeline_secrets=secrets))
    assert again.count("changed") == dict.fromkeys(SITE_NAMES, 0), again.output
