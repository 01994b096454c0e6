"""Declares the settings of a broker's listeners under Kafka's names: addresses, protocols, protection, authorizer."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from pipeline.broker.security.decisions import AuthorizerLogLevel
from pipeline.broker.settings.security import ListenerSecurity, Mechanism
from pipeline.credentials import resolved
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort, SecurityProtocol
from pipeline.settings import parse_address, parsed_by

ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
MAX_LISTENERS = 20
PROTOCOLS: Mapping[str, SecurityProtocol] = {protocol.value: protocol for protocol in SecurityProtocol}


@dataclass(frozen=True, slots=True)
class NamedAddress:
    """An address of a listener: to bind, or to advertise."""

    name: str
    address: HostPort

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """A listener: its name, its protocol, the address to bind, and the address for clients, if that is another."""

    name: str
    protocol: SecurityProtocol
    address: HostPort
    advertised: HostPort | None = None


def parse_listeners(text: str) -> tuple[NamedAddress, ...]:
    """Parse `NAME://host:port,...`. Raises ValueError."""
    found = tuple(_parse(part.strip()) for part in text.split(","))
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise ValueError("two listeners have the same name")
    if len(found) > MAX_LISTENERS:
        raise ValueError(f"at most {MAX_LISTENERS} listeners are served")
    return found


def _parse(part: str) -> NamedAddress:
    name, separator, address = part.partition("://")
    if not separator or not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
        raise ValueError(f"{part!r} is not NAME://host:port")
    return NamedAddress(name.upper(), parse_address(address))


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL,...`. Raises ValueError."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = part.partition(":")
        if not separator or protocol.upper() not in PROTOCOLS:
            raise ValueError(f"{part!r} is not NAME:PROTOCOL, with a protocol of {', '.join(PROTOCOLS)}")
        found[name.upper()] = PROTOCOLS[protocol.upper()]
    return found


def plan_listeners(
    listeners: Sequence[NamedAddress],
    advertised: Sequence[NamedAddress],
    protocols: Mapping[str, SecurityProtocol],
) -> tuple[ListenerPlan, ...]:
    """Return the listeners. Raises ConfigurationError for settings that contradict each other."""
    for_clients = {each.name: each.address for each in advertised}
    unknown = for_clients.keys() - {each.name for each in listeners}
    if unknown:
        raise ConfigurationError("advertised.listeners", f"names {min(unknown)}, which is not among the listeners")
    plans = []
    for each in listeners:
        if each.name not in protocols:
            raise ConfigurationError(
                "listener.security.protocol.map", f"lacks the listener {each.name}: add {each.name}:PROTOCOL"
            )
        address = for_clients.get(each.name)
        if address is None and each.address.host in ANY_ADDRESS:
            raise ConfigurationError(
                "advertised.listeners",
                f"is needed when listening on {each.address.host}, which clients cannot reach",
            )
        if address is not None and address.host in {"", *ANY_ADDRESS}:
            raise ConfigurationError("advertised.listeners", "needs a host name or address that clients can reach")
        plans.append(ListenerPlan(each.name, protocols[each.name], each.address, address))
    return tuple(plans)


def inter_broker_listener(plans: Sequence[ListenerPlan], name: str | None, protocol: SecurityProtocol) -> ListenerPlan:
    """Return the listener by which brokers reach each other: of this name, else the first of this protocol.

    Raises ConfigurationError.
    """
    if name is not None:
        for plan in plans:
            if plan.name == name.upper():
                return plan
        raise ConfigurationError("inter.broker.listener.name", f"is {name}, which is not among the listeners")
    for plan in plans:
        if plan.protocol is protocol:
            return plan
    raise ConfigurationError(
        "security.inter.broker.protocol",
        f"is {protocol.value}, and no listener has this protocol: set inter.broker.listener.name to one of "
        f"{', '.join(plan.name for plan in plans)}",
    )


def _parse_principals(text: str) -> tuple[str, ...]:
    principals = tuple(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        if not principal.startswith("User:") or principal in {"User:", "User:*"}:
            raise ValueError(f"{principal!r} is not User:NAME; several are written User:NAME;User:NAME")
    return principals


_Authorizer = Literal[
    "",
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
]
_Addresses = Annotated[tuple[NamedAddress, ...], parsed_by(parse_listeners)]
_ProtocolMap = Annotated[dict[str, SecurityProtocol], parsed_by(parse_protocol_map)]
_PREFIX = "listener.name."


class ListenersConfig(ListenerSecurity):
    """The listeners of a broker, their protection, and who may do what. Build it with `from_settings`."""

    listeners: _Addresses = Field(
        (NamedAddress(SecurityProtocol.PLAINTEXT.value, HostPort("", 9092)),), alias="listeners"
    )
    """Addresses to listen on, `NAME://host:port` with commas between them. Port 0 takes a free port."""
    advertised_listeners: _Addresses = Field((), alias="advertised.listeners")
    """Addresses that clients connect to, `NAME://host:port,...`, by default those of the listeners. Needed for each
    listener on `0.0.0.0` or `::`."""
    protocol_map: _ProtocolMap = Field(dict(PROTOCOLS), alias="listener.security.protocol.map")
    """Protocols of the listeners, `NAME:PROTOCOL,...`. Protocols are `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` and
    `SASL_SSL`; a listener may bear the name of its protocol."""
    inter_broker_listener_name: str | None = Field(None, alias="inter.broker.listener.name", min_length=1)
    """Name of the listener by which brokers reach each other."""
    inter_broker_protocol: SecurityProtocol = Field(SecurityProtocol.PLAINTEXT, alias="security.inter.broker.protocol")
    """Protocol by which brokers reach each other, if `inter.broker.listener.name` is not set: the first listener with
    it counts."""
    inter_broker_mechanism: Mechanism = Field("PLAIN", alias="sasl.mechanism.inter.broker.protocol")
    """SASL mechanism by which brokers log in to each other, with the name and password, or the client, of its
    `MECHANISM.sasl.jaas.config`."""
    failed_authentication_delay_ms: int = Field(100, alias="connection.failed.authentication.delay.ms", ge=0, le=60_000)
    """Time in ms by which the answer to a failed authentication is delayed."""
    of_listeners: dict[str, Any] = Field({}, alias="listener.name", repr=False)
    """Settings of single listeners: `listener.name.LISTENER.SETTING`, with the listener's name in lower case, for each
    setting of TLS and SASL."""

    authorizer_class_name: _Authorizer = Field("", alias="authorizer.class.name")
    """Authorizer of requests: empty for none, which allows everything to everybody, or one of Kafka's names
    `kafka.security.authorizer.AclAuthorizer` and `org.apache.kafka.metadata.authorizer.StandardAuthorizer`. Both stand
    for the broker's own, by ACLs in ZooKeeper."""
    authorizer_log_level: AuthorizerLogLevel = Field(
        AuthorizerLogLevel.INFO, alias="log4j.logger.kafka.authorizer.logger"
    )
    """Level of the authorizer's log: `INFO` logs what is refused, `DEBUG` what is allowed, too, and `OFF` nothing."""
    super_users: Annotated[tuple[str, ...], parsed_by(_parse_principals)] = Field((), alias="super.users")
    """Users who may do everything, `User:NAME;User:NAME`. Give those of the brokers."""
    allow_everyone_if_no_acl_found: bool = Field(default=False, alias="allow.everyone.if.no.acl.found")
    """True if everybody may do everything with a resource that has no ACL."""

    @classmethod
    def has(cls, key: str) -> bool:
        """True if a setting of this name belongs here."""
        return key.startswith(_PREFIX) or key in {str(field.alias) for field in cls.model_fields.values()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the configuration, with values from where they are kept (`${file:PATH:KEY}` and its like).

        Raises ConfigurationError, also for settings that contradict each other.
        """
        settings = {key: resolved(key, value) if isinstance(value, str) else value for key, value in settings.items()}
        own = {key: value for key, value in settings.items() if key.startswith(_PREFIX)}
        others = {key: value for key, value in settings.items() if key not in own}
        config = super().from_settings(others | ({_PREFIX[:-1]: own} if own else {}))
        names = {plan.name.lower() for plan in config.plans}
        for key in own:
            if key.removeprefix(_PREFIX).partition(".")[0] not in names:
                raise ConfigurationError(key, f"names no listener; there are {', '.join(sorted(names))}")
        for plan in config.plans:
            config.security_of(plan)
        assert config.inter_broker
        return config

    @property
    def plans(self) -> tuple[ListenerPlan, ...]:
        """The listeners. Raises ConfigurationError for settings that contradict each other."""
        return plan_listeners(self.listeners, self.advertised_listeners, self.protocol_map)

    @property
    def inter_broker(self) -> ListenerPlan:
        """The listener by which brokers reach each other. Raises ConfigurationError if there is none."""
        return inter_broker_listener(self.plans, self.inter_broker_listener_name, self.inter_broker_protocol)

    def security_of(self, plan: ListenerPlan) -> ListenerSecurity:
        """Return the settings that protect a listener. Raises ConfigurationError."""
        names = ListenerSecurity.names()
        given = {
            str(field.alias): getattr(self, name)
            for name, field in ListenersConfig.model_fields.items()
            if name in self.model_fields_set and field.alias in names
        }
        prefix = f"listener.name.{plan.name.lower()}."
        own = {key.removeprefix(prefix): value for key, value in self.of_listeners.items() if key.startswith(prefix)}
        try:
            return ListenerSecurity.from_settings(given | own)
        except ConfigurationError as error:
            raise ConfigurationError(f"{prefix}{error.key}", error.reason) from error


def advertised_address(plan: ListenerPlan, bound_port: int) -> HostPort:
    """Return the address of a listener for clients: as advertised, else as bound."""
    if plan.advertised is not None:
        return HostPort(plan.advertised.host, plan.advertised.port or bound_port)
    return HostPort(plan.address.host or socket.getfqdn(), bound_port)
