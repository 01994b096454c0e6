"""Listeners by SSL and SASL_SSL of both servers, beside PLAINTEXT, and the settings of clients for each."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from bench.broker.clients import asked_of, confluent, create_topic, delete_topic
from bench.broker.servers import Server
from bench.broker.workloads import Workload
from pipeline.cli.secured.certificates import Authority
from pipeline.processes import free_port
from tests.support.secured_service import PASSWORD, USER, make_users

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = ("SSL", "SASL_SSL")
MECHANISM = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Site:
    """Files of certificates and settings below a directory."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> "Site":
        """Write certificates and the settings of clients."""
        directory.mkdir(parents=True, exist_ok=True)
        authority = Authority()
        server = authority.issue("broker", ["127.0.0.1", "localhost"])
        (directory / "broker.pem").write_text(server.key + server.certificate, encoding="utf-8")
        (directory / "ca.pem").write_text(authority.certificate, encoding="utf-8")
        site = cls(directory)
        for protocol in (PLAINTEXT, *PROTOCOLS):
            site.settings_of(protocol).write_text(json.dumps(site._client(protocol)), encoding="utf-8")
        return site

    def settings_of(self, protocol: str) -> Path:
        """File with the settings of a client."""
        return self.directory / f"{protocol}.json"

    def _client(self, protocol: str) -> dict[str, str]:
        settings = {"security.protocol": protocol}
        if protocol != PLAINTEXT:
            settings["ssl.ca.location"] = str(self.directory / "ca.pem")
        if protocol.startswith("SASL"):
            settings |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}
        return settings

    def of_server(self) -> dict[str, str]:
        """Settings that both servers take."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "ca.pem"),
            "sasl.enabled.mechanisms": MECHANISM,
        }

    def of_apache_kafka(self) -> dict[str, str]:
        """Settings of Apache Kafka, which wants a login module named."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {**self.of_server(), f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": module}


def new_ports() -> dict[str, int]:
    """Free ports by protocol."""
    return {protocol: free_port() for protocol in PROTOCOLS}


def started(server: Server) -> Server:
    """Start a server, and make the user."""
    server.start()
    make_users(server.bootstrap)
    return server


def measure_once(
    server: Server, work: Workload, bootstrap: str, settings: Path, filled: str = ""
) -> tuple[float, float]:
    """Records per second, and CPU seconds of the broker per GB. Raises ClientError."""
    topic = filled or create_topic(server, work.data.partitions)
    server.wait_for_partitions(topic, work.data.partitions)
    before_s = server.cpu_s
    asked = {**asked_of(work), "settings": str(settings), "bootstrap": bootstrap}
    try:
        rate = confluent(server, topic, asked)["records_per_s"]
        return rate, (server.cpu_s - before_s) / work.gigabytes
    finally:
        if not filled:
            delete_topic(server, topic)


def filled_topic(server: Server, work: Workload) -> str:
    """A topic with the records that a consumer reads, written without protection."""
    topic = create_topic(server, work.data.partitions)
    server.wait_for_partitions(topic, work.data.partitions)
    confluent(server, topic, asked_of(replace(work, action="produce")))
    return topic
