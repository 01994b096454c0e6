from pathlib import Path
from typing import Any

import pytest

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings, Overrides
from pipeline.broker.settings.entries import broker_entries
from pipeline.broker.settings.listeners import advertised_address
from pipeline.cli.broker import read_broker_settings
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort, SecurityProtocol

NEEDED: dict[str, Any] = {"broker.id": 1, "log.dirs": "/data", "zookeeper.connect": "localhost:2181"}


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig.from_settings(NEEDED)
    assert config.log_dirs == (Path("/data"),)
    (plan,) = config.listening.plans
    assert (plan.name, plan.address, plan.protocol) == ("PLAINTEXT", HostPort("", 9092), SecurityProtocol.PLAINTEXT)
    assert config.listening.inter_broker == plan
    assert config.auto_create_topics
    assert config.num_partitions == 1
    assert config.message_max_bytes == 1_048_588
    assert config.zookeeper_session_timeout_ms == 18_000


def test_connections_of_single_addresses() -> None:
    overrides = "127.0.0.1:5, [::1]:7,10.0.0.1:0"
    config = BrokerConfig.from_settings({**NEEDED, "max.connections.per.ip.overrides": overrides})
    assert config.max_connections_per_ip_overrides == {"127.0.0.1": 5, "::1": 7, "10.0.0.1": 0}


def test_no_change_forbids_every_connection() -> None:
    settings = DynamicSettings(BrokerConfig.from_settings(NEEDED))
    for name in (ALL_BROKERS, "1"):
        with pytest.raises(ValueError, match=r"max\.connections\.per\.ip: may be 0 only if"):
            settings.check(name, {"max.connections.per.ip": "0"})
        settings.check(name, {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"})
    settings.take(ALL_BROKERS, Overrides({"max.connections.per.ip": "0"}, 0))  # written by hand
    with pytest.raises(ValueError, match="may be 0 only if"):
        settings.check("1", {"max.connections": "7"})
    settings.check(ALL_BROKERS, {})


@pytest.mark.parametrize(
    ("memory", "largest", "bound"),
    [(134_217_728, 104_857_600, 134_217_728), (1000, 5000, 5000), (-1, 5000, None), (0, 5000, None)],
)
def test_the_largest_request_fits_into_the_memory_of_requests(memory: int, largest: int, bound: int | None) -> None:
    given = {"queued.max.request.bytes": memory, "socket.request.max.bytes": largest}
    assert BrokerConfig.from_settings({**NEEDED, **given}).max_request_memory_bytes == bound


def test_text_and_numbers_mean_the_same() -> None:
    text = {**NEEDED, "broker.id": "1", "auto.create.topics.enable": "false", "num.partitions": "3"}
    number = {**NEEDED, "broker.id": 1, "auto.create.topics.enable": False, "num.partitions": 3}
    assert BrokerConfig.from_settings(text) == BrokerConfig.from_settings(number)


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"broker.id": -1}, "broker.id", "must be at least 0"),
        ({"broker.id": "one"}, "broker.id", "must be a whole number"),
        ({"broker.idd": 1}, "broker.idd", "did you mean broker.id"),
        ({"max.connections.per.ip": 0}, "max.connections.per.ip", "only if max.connections.per.ip.overrides names"),
        ({"max.connections.per.ip.overrides": "host:1"}, "max.connections.per.ip.overrides", "with an IP address"),
        ({"max.connections.per.ip.overrides": "127.0.0.1:x"}, "max.connections.per.ip.overrides", "number of connect"),
        ({"listeners": "h:1"}, "listeners", "NAME://host:port"),
        ({"listeners": "SSL://h:1"}, "security.inter.broker.protocol", "inter.broker.listener.name to one of SSL"),
        ({"listeners": "CLIENT://h:1"}, "listener.security.protocol.map", "add CLIENT:PROTOCOL"),
        ({"listener.security.protocol.map": "CLIENT:TLS"}, "listener.security.protocol.map", "a protocol of PLAINTEXT"),
        ({"inter.broker.listener.name": "OTHER"}, "inter.broker.listener.name", "not among the listeners"),
        ({"listener.name.client.ssl.client.auth": "none"}, "listener.name.client.ssl.client.auth", "names no listener"),
        ({"listener.name.plaintext.ssl.client": "x"}, "listener.name.plaintext.ssl.client", "is not a setting"),
        (
            {"listener.name.plaintext.ssl.client.auth": "maybe"},
            "listener.name.plaintext.ssl.client.auth",
            "'none', 'requested' or 'required'",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms", "GSSAPI is not served"),
        ({"plain.sasl.jaas.config": "s3cret"}, "plain.sasl.jaas.config", "MODULE required"),
        (
            {"oauthbearer.sasl.jaas.config": 'x required ssl.keystore.location="a";'},
            "oauthbearer.sasl.jaas.config",
            "option ssl.keystore.location; ssl.truststore.location, ssl.truststore.certificates",
        ),
        (
            {"oauthbearer.sasl.jaas.config": 'x required ssl.truststore.location="a" ssl.truststore.type="JKS";'},
            "oauthbearer.sasl.jaas.config",
            "another ssl.truststore.type than PEM",
        ),
        (
            {
                "oauthbearer.sasl.jaas.config": (
                    'x required ssl.truststore.location="a" ssl.truststore.certificates="b";'
                )
            },
            "oauthbearer.sasl.jaas.config",
            "has both ssl.truststore.location and ssl.truststore.certificates: give one",
        ),
        ({"super.users": "alice"}, "super.users", "User:NAME"),
        ({"authorizer.class.name": "Other"}, "authorizer.class.name", "AclAuthorizer"),
        ({"listeners": "PLAINTEXT://h:99999"}, "listeners", "not host:port"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "listeners", "the same name"),
        ({"advertised.listeners": "SSL://h:1"}, "advertised.listeners", "names SSL, which is not among"),
        ({"advertised.listeners": "PLAINTEXT://h..example:1"}, "advertised.listeners", "no host has such a name"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners", "clients cannot reach"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners", "clients can reach"),
        ({"log.dirs": "/a,,/b"}, "log.dirs", "one path or several"),
        ({"log.dirs": "/a,/a/"}, "log.dirs", "twice"),
        ({"http.listen": "nowhere"}, "http.listen", "not host:port"),
        ({"log.segment.bytes": 10}, "log.segment.bytes", "1024"),
    ],
)
def test_errors_name_the_key(settings: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        BrokerConfig.from_settings({**NEEDED, **settings})
    assert raised.value.key == key
    assert reason in raised.value.reason


@pytest.mark.parametrize("key", list(NEEDED))
def test_missing_settings_are_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: is missing"):
        BrokerConfig.from_settings({name: value for name, value in NEEDED.items() if name != key})


def test_advertised_address_takes_the_bound_port() -> None:
    plain = BrokerConfig.from_settings({**NEEDED, "listeners": "PLAINTEXT://[::1]:0"})
    assert advertised_address(plain.listening.plans[0], 1234) == HostPort("::1", 1234)
    advertised = BrokerConfig.from_settings({**NEEDED, "advertised.listeners": "PLAINTEXT://public:9"})
    assert advertised_address(advertised.listening.plans[0], 1234) == HostPort("public", 9)


def test_no_secret_is_shown() -> None:
    jaas = 'x required username="b" password="s3cret" user_b="s3cret";'
    config = BrokerConfig.from_settings(
        {
            **NEEDED,
            "listener.name.plaintext.plain.sasl.jaas.config": jaas,
            "plain.sasl.jaas.config": jaas,
            "ssl.key.password": "s3cret",
            "ssl.keystore.key": "s3cret",
        }
    )
    assert "s3cret" not in f"{config!r} {config} {config.listening.security_of(config.listening.plans[0])!r}"
    described = list(broker_entries(DynamicSettings(config)))
    assert "s3cret" not in repr(described)
    for wrong in ("s3cret", 'x required user_a="s3cret'):
        with pytest.raises(ConfigurationError) as refusal:
            BrokerConfig.from_settings({**NEEDED, "plain.sasl.jaas.config": wrong})
        assert "s3cret" not in str(refusal.value)
    hidden = {entry.name for entry in described if entry.is_sensitive}
    assert hidden >= {"ssl.key.password", "ssl.keystore.key", "plain.sasl.jaas.config", "listener.name"}
    assert {entry.name: entry.value for entry in described}["listeners"] == "PLAINTEXT://:9092"
    assert {entry.name: entry.value for entry in described}["ssl.principal.mapping.rules"] == "DEFAULT"


def test_all_faults_of_a_file_are_told_at_once() -> None:
    settings = {
        "broker.id": "seven",
        "listeners": "h:1",
        "log.dirs": "d",
        "audit.interval.ms": 1,
        "zookeeper.conect": "z",
    }
    with pytest.raises(ConfigurationError) as refused:
        read_broker_settings(settings)
    told = str(refused.value)
    for key in ("broker.id", "listeners", "audit.interval.ms", "zookeeper.connect: is missing", "zookeeper.conect"):
        assert key in told
