"""Listeners of a broker: names, addresses and protocols, as Kafka's settings say them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort, SecurityProtocol
from pipeline.settings import parse_address

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
