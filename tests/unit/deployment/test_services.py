"""Settings that follow from a description agree with each other, and each service's own reader takes them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.broker import read_broker_settings
from pipeline.cli.deploy.service_readers import READERS
from pipeline.deployment.company import Company, ServiceRole
from pipeline.deployment.files import rendered_files
from pipeline.deployment.services import CompanyService, services_of
from pipeline.mirror.config import MirrorConfig
from pipeline.settings import flatten
from tests.support.companies import Document, change_host, example_company, secure


def service(company: Company, host: str, name: str) -> CompanyService:
    (found,) = (each for each in services_of(company) if (each.host.name, each.name) == (host, name))
    return found


def settings(company: Company, host: str, name: str) -> dict[str, Any]:
    return service(company, host, name).settings


def test_mirror_audit_and_brokers_have_the_same_names() -> None:
    company = example_company()
    audit = settings(company, "hub-3", "audit-hub")
    mirror = settings(company, "hub-1", "mirror-hub")
    assert [each["name"] for each in audit["live"]] == [each["name"] for each in mirror["sources"]] == ["east", "west"]
    assert [each["name"] for each in audit["replica"]] == [mirror["datacenter"]] == ["hub"]
    for name in ("east", "west", "hub"):
        assert settings(company, f"{name}-1", "broker-1")["datacenter"] == name
    assert audit["live"][0]["bootstrap.servers"] == mirror["sources"][0]["bootstrap.servers"]


def test_an_audit_reads_the_sources_of_each_mirror_that_copies_more_than_internal_topics() -> None:
    def live(*topics: str) -> list[str]:
        company = example_company(lambda document: document["mirrors"][0].update(topics=topics))
        return [each["name"] for each in settings(company, "hub-3", "audit-hub")["live"]]

    assert live("_schemas", "_other") == ["hub"]
    assert live("_schemas", "orders") == ["east", "west"]
    assert live("_schemas|orders") == live("_?orders") == ["east", "west"]


def test_brokers_count_only_what_an_audit_reads() -> None:
    company = example_company(change_host("hub-3", roles=["load"]))
    assert "datacenter" not in settings(company, "east-1", "broker-1")
    assert "datacenter" not in settings(company, "hub-1", "mirror-hub")


def test_mirrors_on_several_hosts_share_the_work_and_one_alone_needs_no_zookeeper() -> None:
    company = example_company()
    first, second = (settings(company, host, "mirror-hub") for host in ("hub-1", "hub-2"))
    assert first == second
    assert first["zookeeper.connect"] == "hub-1.example.com:2181,hub-2.example.com:2181,hub-3.example.com:2181"
    assert "zookeeper.connect" not in settings(company, "east-3", "mirror-east")


def test_a_registry_over_the_mirrored_topic_follows_the_registries_where_it_is_written() -> None:
    company = example_company()
    assert settings(company, "west-3", "registry-west")["leader.eligibility"] is False
    assert settings(company, "west-3", "registry-west")["leader.urls"] == [
        "http://hub-1.example.com:8081",
        "http://hub-2.example.com:8081",
    ]
    assert "leader.eligibility" not in settings(company, "hub-1", "registry-hub")


def test_clients_create_topics_but_where_a_mirror_does() -> None:
    company = example_company()
    assert settings(company, "hub-1", "broker-1")["auto.create.topics.enable"] is False
    assert "auto.create.topics.enable" not in settings(company, "east-1", "broker-1")  # a mirror brings schemas alone


def test_settings_of_the_company_are_weaker_than_those_of_a_datacenter_and_than_what_follows() -> None:
    def give(document: Document) -> None:
        document["settings"]["broker"]["default.replication.factor"] = 2

    company = example_company(give)
    assert settings(company, "east-1", "broker-1")["log.retention.hours"] == 168
    assert settings(company, "hub-1", "broker-1")["log.retention.hours"] == 720
    assert settings(company, "hub-1", "broker-1")["default.replication.factor"] == 2


def test_a_small_datacenter_has_fewer_replicas() -> None:
    def shrink(document: Document) -> None:
        document["hosts"] = [host for host in document["hosts"] if host["name"] not in {"west-1", "west-2"}]

    of_broker = settings(example_company(shrink), "west-3", "broker-3")
    assert (of_broker["default.replication.factor"], of_broker["min.insync.replicas"]) == (1, 1)
    assert of_broker["offsets.topic.replication.factor"] == 1


def test_services_bind_an_ip_address_and_all_addresses_of_a_name() -> None:
    company = example_company(
        change_host("east-1", address="127.0.0.11"),
        change_host("east-2", address="2001:db8::2"),
        change_host("east-3", listen="10.0.0.3"),
    )
    bound = {host: settings(company, host, f"broker-{host[-1]}") for host in ("east-1", "east-2", "east-3")}
    assert [each["listeners"] for each in bound.values()] == [
        "PLAINTEXT://127.0.0.11:9092",
        "PLAINTEXT://[2001:db8::2]:9092",
        "PLAINTEXT://10.0.0.3:9092",
    ]
    assert bound["east-3"]["advertised.listeners"] == "PLAINTEXT://east-3.example.com:9092"
    assert bound["east-2"]["http.listen"] == "[2001:db8::2]:9080"
    assert settings(company, "east-2", "zookeeper-2")["server.2"] == "[2001:db8::2]:2888:3888"


def test_brokers_without_disks_have_a_folder_of_their_own() -> None:
    company = example_company(change_host("hub-1", disks=None))
    assert settings(company, "hub-1", "broker-2")["log.dirs"] == "/var/lib/pipeline/broker-2"
    assert settings(company, "hub-2", "broker-3")["log.dirs"].split(",")[0] == "/data/1/broker-3"


def test_java_reads_from_a_file_of_properties_what_the_description_says() -> None:
    company = example_company(lambda d: d["settings"].update(zookeeper={"text": "/a\\b \u00e4 \U0001f600"}))
    text = rendered_files(company, "company.toml")["east-1/etc/pipeline/zookeeper-1.properties"]
    assert "\ntext=/a\\\\b \\u00e4 \\ud83d\\ude00\n" in text


@pytest.mark.parametrize("changes", [(), (secure,)], ids=["open", "secured"])
def test_no_rendered_file_holds_a_secret_and_each_is_what_its_service_reads(changes: Any, tmp_path: Any) -> None:
    """The files of secrets lie where the description says, with a word that must not be in any rendered file."""

    def keep_here(document: Document) -> None:
        passwords = tmp_path / "passwords"
        users = ("broker", "admin", "mirror", "registry", "audit", "load")
        passwords.write_text("".join(f"{user}=s3cret\n" for user in users))
        document["security"]["passwords"] = str(passwords)

    company = example_company(*changes, keep_here)
    files = rendered_files(company, "company.toml")
    assert not any("s3cret" in text for text in files.values())
    read = 0
    for each in services_of(company):
        if each.role in READERS:
            text = files[f"{each.host.name}/etc/pipeline/{each.name}.toml"]
            READERS[each.role](flatten(tomllib.loads(text)))
            read += 1
    assert read == 31 - 9  # all but ZooKeeper's


def test_a_secured_company_has_no_door_in_clear() -> None:
    company = example_company(secure)
    broker, _ = read_broker_settings(
        {
            **settings(company, "hub-1", "broker-1"),
            "plain.sasl.jaas.config": 'x required username="b" password="c";',
            "zookeeper.auth.password": "x",
        }
    )
    assert [plan.protocol.value for plan in broker.listening.plans] == ["SASL_SSL"]
    assert broker.listening.authorizer_class_name
    assert broker.http.is_encrypted
    assert broker.http.asks_login
    assert broker.zookeeper_security.is_encrypted
    assert broker.zookeeper_security.set_acl
    ensemble = settings(company, "hub-1", "zookeeper-1")
    assert "clientPort" not in ensemble
    assert ensemble["sslQuorum"] == ensemble["enforce.auth.enabled"] == "true"
    assert ensemble["sslQuorumReloadCertFiles"] == "true"
    mirror = MirrorConfig.from_settings(without_passwords(settings(company, "hub-1", "mirror-hub")))
    assert {source.security.protocol.value for source in mirror.sources} == {"SASL_SSL"}
    assert mirror.destination_security.protocol.value == "SASL_SSL"


def without_passwords(given: Any) -> Any:
    match given:
        case dict():
            return {key: without_passwords(value) for key, value in given.items()}
        case list():
            return [without_passwords(value) for value in given]
        case str() if given.startswith("${"):
            return "x"
        case _:
            return given


def test_the_order_of_units_is_that_of_starts() -> None:
    files = rendered_files(example_company(), "company.toml")
    assert files["hub-3/units"].splitlines() == [
        "pipeline-zookeeper@3.service",
        "pipeline-broker@5.service",
        "pipeline-broker@6.service",
        "pipeline-audit@hub.service",
        "pipeline-load@lake.timer",
    ]
    assert set(ServiceRole) - READERS.keys() == {ServiceRole.ZOOKEEPER}


def test_units_get_what_the_package_cannot_know() -> None:
    def inside(document: Document) -> None:
        for host in document["hosts"]:
            if host["name"] != "hub-1":
                host["disks"] = ["/var/lib/pipeline" if host["name"] == "hub-3" else "/var/lib/pipeline/disk1"]
        document["settings"]["zookeeper"] = {"dataLogDir": "/log"}
        document["loads"][0]["root"] = "file:///lake"

    files = rendered_files(example_company(inside, secure), "company.toml")
    found = {path: text.splitlines()[1:] for path, text in files.items() if path.endswith("render.conf")}
    in_hub = "hub-{}/etc/systemd/system/pipeline-{}.service.d/render.conf".format
    assert found[in_hub(1, "broker@2")] == ["[Service]", "ReadWritePaths=/data/1 /data/2 /data/3 /data/4"]
    assert found[in_hub(2, "broker@3")] == ["[Service]", "ReadWritePaths=/var/lib/pipeline/disk1"]
    assert in_hub(3, "broker@5") not in found
    assert found[in_hub(1, "zookeeper@1")][1] == "ReadWritePaths=/log"
    inventory = yaml.safe_load(files["ansible/inventory.yml"])["all"]["children"]["datacenter_hub"]["hosts"]
    assert "/log" in inventory["hub-1"]["pipeline_log_dirs"]
    assert inventory["hub-3"]["pipeline_log_dirs"][0] == "/var/lib/pipeline/broker-5"
    (users,) = {text[-1] for path, text in found.items() if "zookeeper" in path}
    assert users.endswith("-Djava.security.auth.login.config=/etc/pipeline/secrets/zookeeper.jaas")
    assert found[in_hub(3, "load@lake")] == [
        "[Service]",
        "ReadWritePaths=-/lake",
        'Environment="AUDIT_OPTIONS=--datacenter hub"',
    ]


def test_the_unit_of_a_load_takes_options_of_the_render_beside_those_of_an_operator() -> None:
    """systemd reads `render.conf` after the `override.conf` of `systemctl edit`: one variable would hold the former."""
    unit = (Path(__file__).parents[3] / "deploy/systemd/pipeline-load@.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    assert {"$AUDIT_OPTIONS", "$LOAD_OPTIONS"} <= set(command.split())
    files = rendered_files(example_company(secure), "company.toml")
    assert [path for path, text in files.items() if "LOAD_OPTIONS" in text] == []


def test_the_inventory_has_the_hosts_of_each_datacenter_and_what_the_role_needs() -> None:
    text = rendered_files(example_company(secure), "company.toml")["ansible/inventory.yml"]
    groups = yaml.safe_load(text)["all"]["children"]
    assert {name: list(group["hosts"]) for name, group in groups.items()} == {
        f"datacenter_{name}": [f"{name}-{number}" for number in (1, 2, 3)] for name in ("east", "west", "hub")
    }
    first, second = (groups["datacenter_hub"]["hosts"][name] for name in ("hub-1", "hub-2"))
    assert first == {
        "ansible_host": "hub-1.example.com",
        "pipeline_bootstrap": settings(example_company(), "hub-1", "mirror-hub")["destination.bootstrap.servers"],
        "pipeline_admin_host": "hub-1",
        "pipeline_zookeeper_servers": [f"hub-{number}.example.com:2181" for number in (1, 2, 3)],
        "pipeline_log_dirs": [f"/data/{disk}/broker-{broker}" for broker in (1, 2) for disk in (1, 2, 3, 4)],
        "pipeline_tls": True,
        "pipeline_acls": "acls/hub.sh",
    }
    assert (second["pipeline_admin_host"], "pipeline_acls" in second) == ("hub-1", False)
