"""Settings that protect services, by the description's `[security]`: they name the files of secrets. Pure.

Services log in by PLAIN, whose passwords brokers have in their settings, so that a new cluster needs no users in
ZooKeeper before its first start. Users of applications are made with `pipeline user create`, for SCRAM.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.deployment.company import CompanySecurity

BROKER_USER = "broker"
ADMIN_USER = "admin"
SERVICE_USERS = (BROKER_USER, ADMIN_USER, "mirror", "registry", "audit", "load")
LISTENERS: Mapping[tuple[bool, bool], str] = {
    (False, False): "PLAINTEXT",
    (True, False): "SSL",
    (True, True): "SASL_SSL",
    (False, True): "SASL_PLAINTEXT",
}
"""Protocols of listeners by whether there is TLS, and SASL."""
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def listener_protocol(security: CompanySecurity) -> str:
    """Return the protocol of the brokers' listeners, which is their name, too."""
    return LISTENERS[security.tls, security.sasl]


def _password(security: CompanySecurity, user: str) -> str:
    return f"${{file:{security.passwords}:{user}}}"


def broker_protection(security: CompanySecurity) -> dict[str, Any]:
    """Return the settings that protect a broker's listener, and its connections to brokers and ZooKeeper."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection |= {
            "security.inter.broker.protocol": listener_protocol(security),
            "ssl.keystore.location": security.keystore,
            "ssl.truststore.location": security.truststore,
        }
    if security.sasl:
        users = "".join(f' user_{user}="{_password(security, user)}"' for user in SERVICE_USERS)
        login = f'username="{BROKER_USER}" password="{_password(security, BROKER_USER)}"'
        protection |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "plain.sasl.jaas.config": f"{_JAAS} {login}{users};",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKER_USER};User:{ADMIN_USER}",
        }
    return protection | zookeeper_client_protection(security, BROKER_USER)


def zookeeper_client_protection(security: CompanySecurity, user: str) -> dict[str, Any]:
    """Return the settings by which a service reaches ZooKeeper."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection |= {"zookeeper.ssl.client.enable": True, "zookeeper.ssl.truststore.location": security.truststore}
    if security.sasl:
        protection |= {
            "zookeeper.auth.username": user,
            "zookeeper.auth.password": _password(security, user),
            "zookeeper.set.acl": True,
        }
    return protection


def zookeeper_protection(security: CompanySecurity) -> dict[str, Any]:
    """Return the settings of zoo.cfg that protect a server. With SASL its users are in a file of Java's logins."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection["serverCnxnFactory"] = "org.apache.zookeeper.server.NettyServerCnxnFactory"
        protection["sslQuorum"] = "true"
        for prefix in ("ssl", "ssl.quorum"):
            protection |= {
                f"{prefix}.keyStore.location": security.keystore,
                f"{prefix}.keyStore.type": "PEM",
                f"{prefix}.trustStore.location": security.truststore,
                f"{prefix}.trustStore.type": "PEM",
            }
        protection["ssl.clientAuth"] = "none"
        protection["sslQuorumReloadCertFiles"] = "true"
    if security.sasl:
        protection |= {
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "sasl",
        }
    return protection


def client_protection(security: CompanySecurity, user: str) -> dict[str, Any]:
    """Return the settings by which a user reaches brokers."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection |= {"security.protocol": listener_protocol(security), "ssl.ca.location": security.truststore}
    if security.sasl:
        protection |= {
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": _password(security, user),
        }
    return protection


def http_protection(security: CompanySecurity) -> dict[str, Any]:
    """Return the settings that protect an HTTP server."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection["http.ssl.keystore.location"] = security.keystore
    if security.sasl:
        protection["http.users.file"] = security.http_users
    return protection


def login_protection(security: CompanySecurity, user: str) -> dict[str, Any]:
    """Return the settings by which a user reaches HTTP servers."""
    protection: dict[str, Any] = {}
    if security.tls:
        protection["schema.registry.ssl.ca.location"] = security.truststore
    if security.sasl:
        protection["basic.auth.user.info"] = f"{user}:{_password(security, user)}"
    return protection
