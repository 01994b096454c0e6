"""Settings of connections to ZooKeeper, and the ACLs of znodes, without a server."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.terminal.client_config import CLIENT_CONFIG_VARIABLE, client_security, zookeeper_security
from pipeline.coordination.znode_acls import SECURE_ROOTS, ZnodeAcl, default_acl
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.errors import ConfigurationError
from pipeline.mirror.config import MirrorConfig

USER = {"zookeeper.auth.username": "broker", "zookeeper.auth.password": "hidden-1"}
MIRROR = {"http.listen": "127.0.0.1:0", "destination.bootstrap.servers": "hub:1", "topics": ["t"]}


@pytest.mark.parametrize(
    ("path", "acl"),
    [
        ("/", ZnodeAcl.READABLE),
        ("/config", ZnodeAcl.READABLE),
        ("/config/users", ZnodeAcl.PRIVATE),
        ("/config/users/alice", ZnodeAcl.PRIVATE),
        ("/config/users/alice/clients/c", ZnodeAcl.PRIVATE),
        ("/config/brokers/1", ZnodeAcl.PRIVATE),
        ("/config/topics/users", ZnodeAcl.READABLE),
        ("/delegation_token/tokens/t", ZnodeAcl.PRIVATE),
        ("/consumers", ZnodeAcl.OPEN),
        ("/consumers/g", ZnodeAcl.READABLE),
        ("/mirrors", ZnodeAcl.OPEN),
        ("/controller", ZnodeAcl.READABLE),
    ],
)
def test_the_acl_of_a_path_is_kafkas(path: str, acl: ZnodeAcl) -> None:
    assert default_acl(path, is_secured=True) is acl
    assert default_acl(path, is_secured=False) is ZnodeAcl.OPEN


def test_every_root_that_brokers_write_is_secured() -> None:
    written = {"/admin", "/brokers", "/cluster", "/config", "/controller", "/controller_epoch"}
    acls = {"/kafka-acl", "/kafka-acl-changes", "/kafka-acl-extended", "/kafka-acl-extended-changes"}
    assert written | acls | {"/isr_change_notification", "/latest_producer_id_block"} <= set(SECURE_ROOTS)


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"zookeeper.set.acl": True}, "zookeeper.set.acl", "needs a user"),
        ({"zookeeper.auth.username": "b"}, "zookeeper.auth.password", "together"),
        ({"zookeeper.auth.password": "hidden-1"}, "zookeeper.auth.password", "together"),
        ({**USER, "zookeeper.auth.username": "a:b"}, "zookeeper.auth.username", "regular expression"),
        ({**USER, "zookeeper.auth.scheme": "ip"}, "zookeeper.auth.scheme", "sasl"),
        ({"zookeeper.ssl.truststore.location": "/ca"}, "zookeeper.ssl.truststore.location", "client.enable"),
        ({"zookeeper.ssl.keystore.type": "JKS"}, "zookeeper.ssl.keystore.type", "PEM"),
        ({"zookeeper.auth.pasword": "hidden-1"}, "zookeeper.auth.pasword", "did you mean zookeeper.auth.password"),
        ({**USER, "zookeeper.auth.password": "${env:NO_SUCH_VARIABLE}"}, "zookeeper.auth.password", "not set"),
    ],
)
def test_settings_that_protect_nothing_are_refused(settings: dict[str, Any], key: str, said: str) -> None:
    for build in (
        ZooKeeperSecurity.from_settings,
        lambda given: BrokerConfig.from_settings(
            {"broker.id": 1, "log.dirs": "/d", "zookeeper.connect": "z:1", **given}
        ),
    ):
        with pytest.raises(ConfigurationError, match=said) as refusal:
            build(settings)
        assert refusal.value.key == key
        assert "hidden-1" not in f"{refusal.value!s}{refusal.value!r}"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tls = {"zookeeper.ssl.client.enable": True}
    missing = ZooKeeperSecurity.from_settings({**tls, "zookeeper.ssl.truststore.location": str(tmp_path / "none")})
    with pytest.raises(ConfigurationError, match=r"zookeeper\.ssl\.truststore\.location.*cannot be read"):
        missing.context()
    (tmp_path / "broken.pem").write_text("no certificate")
    broken = ZooKeeperSecurity.from_settings({**tls, "zookeeper.ssl.keystore.location": str(tmp_path / "broken.pem")})
    with pytest.raises(ConfigurationError, match=r"zookeeper\.ssl\.keystore\.location"):
        broken.context()


def test_passwords_come_from_elsewhere_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_PASSWORD", "hidden-1")
    settings = {**USER, "zookeeper.auth.password": "${env:ZK_PASSWORD}", "zookeeper.set.acl": "true"}
    broker = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/d", "zookeeper.connect": "z:1", **settings})
    mirror = MirrorConfig.from_settings(
        {**MIRROR, **settings, "sources": [{"name": "a", "bootstrap.servers": "a:1", **settings}]}
    )
    for security in (broker.zookeeper_security, mirror.zookeeper_security, mirror.sources[0].zookeeper_security):
        assert security.login == ("broker", "hidden-1")
        assert security.set_acl
    assert "hidden-1" not in f"{broker!r}{mirror!r}{mirror.model_dump_json()}{broker.zookeeper_security}"


def test_a_command_takes_both_protections_from_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.username=alice\nsasl.password=p\n"
        "zookeeper.auth.username=broker\nzookeeper.auth.password=hidden-1\n"
    )
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(path))
    assert client_security().username == "alice"
    assert zookeeper_security().login == ("broker", "hidden-1")
    path.write_text("zookeeper.auth.name=broker\n")
    with pytest.raises(ConfigurationError, match=r"client\.properties: zookeeper\.auth\.name: is not a setting"):
        zookeeper_security()
    monkeypatch.delenv(CLIENT_CONFIG_VARIABLE)
    assert not zookeeper_security().has_identity
