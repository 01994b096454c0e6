"""An authorizer with 10,000 ACLs beside none: two of our brokers, the same client, in turn."""

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench.broker.clients import ClientError, delete_topic
from bench.broker.servers import Server, our_broker
from bench.broker.throughput import in_turn
from bench.broker.workloads import CONFLUENT, RECORDS, Data, Workload
from bench.report import Options, Row, Show, Target, median_or_none
from bench.security.listeners import PLAINTEXT, Site, filled_topic, measure_once

PEER = "no authorizer"
ACLS = 10_000
ACLS_AT_A_TIME = 500
TARGET = Target(bound=0.97, at_least=True)
LEAST_RECORDS = 300_000
"""Fewer are read in a second, which is too short a time to see 3 %."""
DEADLINE_S = 300


def _name(action: str) -> str:
    return f"{action} 1 KB, {ACLS:,} ACLs"


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    """All selected rows."""
    selected = [action for action in ("produce", "consume") if options.selects(_name(action))]
    if not selected:
        return []
    site = Site.made(directory)
    guarded = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:nobody"}
    with ExitStack() as stack:
        with_acls = stack.enter_context(our_broker(directory / "acls", **guarded, **FIRST_RIGHTS))
        without = stack.enter_context(our_broker(directory / "none"))
        for server in (with_acls, without):
            show(f"starting {server.name}")
            server.start()
        show(f"making {ACLS:,} ACLs")
        _make_acls(with_acls.bootstrap)
        servers = {"with": with_acls, "without": without}
        return [row for action in selected for row in _rows(action, options, rounds, servers, site, show)]


FIRST_RIGHTS = {"allow.everyone.if.no.acl.found": "true"}
"""Nobody else could make the first ACLs."""


def _make_acls(bootstrap: str) -> None:
    """ACLs of 5,000 topics, a quarter of them by prefix, for users and the client of the benchmark (ANONYMOUS)."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def rule(number: int) -> AclBinding:
        kind = ResourcePatternType.PREFIXED if number % 4 == 1 else ResourcePatternType.LITERAL
        operation = AclOperation.READ if number % 2 else AclOperation.WRITE
        return AclBinding(
            ResourceType.TOPIC, f"team-{number // 2}", kind, f"User:u{number % 100}", "*", operation,
            AclPermissionType.ALLOW,
        )  # fmt: skip

    own = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind, name in (
            (ResourceType.TOPIC, "*"),
            (ResourceType.GROUP, "*"),
            (ResourceType.BROKER, "kafka-cluster"),
        )
    ]
    rules = [*own, *map(rule, range(ACLS - len(own)))]
    for first in range(0, len(rules), ACLS_AT_A_TIME):
        made = admin.create_acls(rules[first : first + ACLS_AT_A_TIME], request_timeout=DEADLINE_S)
        for done in made.values():
            done.result(DEADLINE_S)


def _rows(action: str, options: Options, rounds: int, servers: dict[str, Server], site: Site, show: Show) -> list[Row]:
    records = options.scaled(RECORDS[1000], least=LEAST_RECORDS)
    work = Workload(action=action, client=CONFLUENT, data=Data(record_bytes=1000), records=records)
    filled = {kind: filled_topic(server, work) if action == "consume" else "" for kind, server in servers.items()}
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    error = ""
    try:
        for number in range(-1, rounds):  # the first one warms up
            for kind in in_turn(list(servers), number):
                show(f"{_name(action)}: {kind}, round {number + 1} of {rounds}")
                server = servers[kind]
                rate, cost = measure_once(server, work, server.bootstrap, site.settings_of(PLAINTEXT), filled[kind])
                if number >= 0:
                    rates[kind].append(rate)
                    costs[kind].append(cost)
    except ClientError as failure:
        error = str(failure)
    for kind, server in servers.items():
        if filled[kind]:
            delete_topic(server, filled[kind])
    rows = (
        _row(_name(action), "records/s", rates, TARGET, error),
        _row(f"CPU {_name(action)}", "s/GB", costs, None, error),
    )
    return [row for row in rows if options.selects(row.name)]


def _row(name: str, unit: str, values: dict[str, list[float]], target: Target | None, error: str) -> Row:
    ours, theirs = values["with"], values["without"]
    return Row(
        name=name,
        unit=unit,
        ours=median_or_none(ours),
        peer=PEER,
        theirs=median_or_none(theirs),
        ratio_of_rounds=median(with_ / none for with_, none in zip(ours, theirs, strict=False)) if theirs else None,
        target=target,
        error=error,
    )
