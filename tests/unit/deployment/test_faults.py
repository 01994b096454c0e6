"""A description's faults are all found at once, each with the part and what to do."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.deployment.company import company_of
from pipeline.deployment.faults import faults_of
from tests.support.companies import Document, change_host, example_company, example_document

Change = Callable[[Document], Any]


def added(table: str, **values: object) -> Change:
    return lambda document: document.setdefault(table, []).append(values)


def of_form(*changes: Change) -> tuple[str, ...]:
    return company_of(example_document(*changes))[1]


def test_the_example_has_no_faults() -> None:
    assert faults_of(example_company()) == ()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d.pop("hosts"), "hosts is missing"),
        (lambda d: d["hosts"][0].pop("address"), "hosts.east-1.address is missing"),
        (change_host("east-1", rak="a"), "hosts.east-1.rak is no part of the description; did you mean rack?"),
        (change_host("east-1", zookeeper=True), "hosts.east-1.zookeeper must be a whole number (given: True)"),
        (change_host("east-1", brokers=["1"]), "hosts.east-1.brokers.1 must be a whole number (given: '1')"),
        (
            change_host("east-1", ports={"broker": True}),
            "hosts.east-1.ports.broker must be a whole number (given: True)",
        ),
        (change_host("east-1", zookeeper=0), "hosts.east-1.zookeeper must be at least 1 (given: 0)"),
        (change_host("east-1", brokers=["one"]), "hosts.east-1.brokers.1 must be a whole number (given: 'one')"),
        (
            change_host("east-1", roles=["miror"]),
            "hosts.east-1.roles.1 must be 'registry', 'mirror', 'audit' or 'load' (given: 'miror')",
        ),
        (
            change_host("east-1", name="east 1"),
            "hosts.east 1.name has letters that are not allowed there (given: 'east 1')",
        ),
        (
            change_host("east-1", disks=["data"]),
            "hosts.east-1.disks.1 has letters that are not allowed there (given: 'data')",
        ),
        (
            lambda d: d["settings"].update(brokers={}),
            "settings.brokers: there is no such role; roles are zookeeper, broker, registry, mirror, audit, load",
        ),
        (
            lambda d: d["settings"]["broker"].update({"num.partitions": 6}),
            "settings num.partitions: is set twice, as a quoted key and as a dotted key or in a table",
        ),
    ],
)
def test_faults_of_form(change: Change, fault: str) -> None:
    assert of_form(change) == (fault,)


def test_tables_without_end_are_a_fault_of_form() -> None:
    table: Document = {}
    for _ in range(5000):
        table = {"a": table}
    assert of_form(lambda d: d["settings"].update(mirror=table)) == (
        "the description has tables within tables, deeper than any setting is",
    )


def test_all_faults_of_form_are_found_at_once() -> None:
    found = of_form(change_host("east-1", zookeeper=0, rak="a", address=None), change_host("hub-1", disks=["data"]))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (added("datacenters", name="west"), "datacenters: the name west is given twice; give each datacenter its own"),
        (change_host("east-1", name="west-1"), "hosts: the name west-1 is given twice; give each host its own"),
        (
            added("loads", name="lake", datacenter="hub", root="/lake"),
            "loads: the name lake is given twice; give each load its own",
        ),
        (
            added("mirrors", destination="hub", sources=["east"], topics=["a"]),
            "mirrors: two have the destination hub; make them one table",
        ),
        (
            change_host("east-1", name="ansible"),
            "hosts.ansible: this is a name of a file or folder beside those of hosts; choose another name",
        ),
        (
            change_host("east-1", name="rendered-files"),
            "hosts.rendered-files: this is a name of a file or folder beside those of hosts; choose another name",
        ),
        (
            change_host("east-1", name="all"),
            "hosts.all: Ansible has a group of hosts of this name; choose another name",
        ),
        (
            change_host("east-1", name="datacenter_hub"),
            "hosts.datacenter_hub: Ansible has a group of hosts of this name; choose another name",
        ),
        (
            change_host("east-1", name="West-1"),
            "hosts: West-1 and west-1 differ in capital letters alone; change another letter of one",
        ),
        (
            lambda d: d["datacenters"].extend([{"name": "us-1"}, {"name": "us.1"}, {"name": "US_1"}]),
            "datacenters: US_1 and us-1 and us.1 would be one group of hosts for Ansible; change a letter or digit of "
            "one",
        ),
        (
            change_host("east-1", address="east-1.example.com:9092"),
            "hosts.east-1.address: east-1.example.com:9092 is no IP address; give a port in ports",
        ),
        (
            change_host("east-1", listen="10.0.0.256"),
            "hosts.east-1.listen: 10.0.0.256 is no IP address; give a port in ports",
        ),
        (
            change_host("east-1", datacenter="eats"),
            "hosts.east-1.datacenter: there is no datacenter eats; datacenters are east, west, hub",
        ),
        (
            lambda d: d["mirrors"][0]["sources"].append("north"),
            "mirrors.hub.sources: there is no datacenter north; datacenters are east, west, hub",
        ),
        (lambda d: d["mirrors"][0]["sources"].append("east"), "mirrors.hub.sources: east is named twice"),
        (
            lambda d: d["mirrors"][0]["sources"].append("hub"),
            "mirrors.hub.sources: a datacenter cannot be a source of its own mirror",
        ),
        (
            change_host("east-1", brokers=[], zookeeper=None),
            "hosts.east-1: nothing runs there; give it zookeeper, brokers or roles, or remove it",
        ),
        (change_host("east-2", brokers=[1]), "datacenters.east: two brokers have the id 1"),
        (
            added("datacenters", name="south"),
            "datacenters.south: no host has a ZooKeeper server; set zookeeper = ID on one, three or five",
        ),
        (
            added("datacenters", name="south"),
            "datacenters.south: no host has brokers; set brokers = [ID] on one or more",
        ),
        (change_host("east-2", zookeeper=1), "datacenters.east: two ZooKeeper servers have the id 1"),
        (
            change_host("hub-1", ports={"audit": 9102, "registry": 9092}),
            "port 9092 of hub-1.example.com is taken twice: by hub-1/broker-1 and by hub-1/registry-hub (HTTP); set "
            "ports of the host",
        ),
        (
            change_host("hub-1", ports={"broker_http": 9082}),
            "port 9092 of hub-1.example.com is taken twice: by hub-1/broker-1 and by hub-1/broker-2 (HTTP); set ports "
            "of the host",
        ),
        (
            change_host("east-3", zookeeper=None),
            "datacenters.east: 2 ZooKeeper servers tolerate no more failures than 1; use an odd number",
        ),
        (
            change_host("east-3", rack=None),
            "hosts.east-3.rack is missing: other hosts of east have one; give all hosts racks, or none",
        ),
        (
            change_host("east-3", rack="b"),
            "datacenters.east: offsets.topic.replication.factor = 3, and there are 2 racks (without racks, hosts): two "
            "replicas of a partition would be lost together",
        ),
        (
            lambda d: d["settings"]["broker"].update({"offsets.topic.replication.factor": 4}),
            "datacenters.west: offsets.topic.replication.factor = 4, and there are 3 brokers",
        ),
        (
            lambda d: d["settings"]["broker"].update({"default.replication.factor": "5"}),
            "datacenters.west: default.replication.factor = 5, and there are 3 brokers",
        ),
        (
            lambda d: d["settings"]["broker"].update({"offsets.topic.replication.factor": 5.0}),
            "datacenters.west: offsets.topic.replication.factor = 5, and there are 3 brokers",
        ),
        (
            change_host("east-1", disks=["/data/1", "/data/x/../1/broker-1"]),
            "hosts.east-1.disks: /data/1/broker-1/broker-1 lies in /data/1/broker-1, which holds the log of a broker "
            "alone",
        ),
        (
            change_host("east-1", disks=["/data/1", "/tmp/2"]),
            "hosts.east-1.disks: /tmp/2 is in /tmp, which systemd's units hide from services; take another folder",
        ),
        (
            lambda d: d["loads"][0].update(root="file:///home/lake"),
            "settings of load-lake: /home/lake is in /home, which systemd's units hide from services; take another "
            "folder",
        ),
        (
            lambda d: d["settings"].update(zookeeper={"dataLogDir": "/a %i"}),
            "settings of zookeeper-1: '/a %i' is not the path of a folder, or has letters that are not allowed there",
        ),
        (
            lambda d: d["settings"]["broker"].update({"min.insync.replicas": "3"}),
            "datacenters.hub: min.insync.replicas = 3, and default.replication.factor = 3: writes would fail while any "
            "broker is restarted; set it lower",
        ),
        (
            change_host("east-3", roles=["registry"]),
            'mirrors.east: no host there runs it; add "mirror" to the roles of one',
        ),
        (
            lambda d: d["mirrors"][0]["topics"].append("("),
            "mirrors.hub.topics: ( is not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        (
            lambda d: d["mirrors"].pop(1),
            "hosts.east-3.roles: mirror has nothing to do; no table [[mirrors]] has destination east",
        ),
        (
            lambda d: d["mirrors"][1]["topics"].append("clicks"),
            "mirrors: the topic clicks would go in a circle: hub > east > hub; exclude it from one mirror "
            "(topics_exclude)",
        ),
        (
            lambda d: d["mirrors"][1]["topics"].append("a.*"),
            "mirrors: a topic that several patterns match would go in a circle: hub > east > hub; exclude it from one "
            "mirror (topics_exclude)",
        ),
        (
            lambda d: d["mirrors"][2].update(topics=["orders"]),
            "registries of hub and of west would give the same ids to different schemas: let a mirror bring _schemas "
            "from hub to the others (topics of [[mirrors]])",
        ),
        (
            lambda d: d["mirrors"][2].update(topics_exclude=["_.*"]),
            "registries of hub and of west would give the same ids to different schemas: let a mirror bring _schemas "
            "from hub to the others (topics of [[mirrors]])",
        ),
        (
            lambda d: d["mirrors"][1]["sources"].append("west"),
            "mirrors.east: _schemas comes from 2 sources, and a registry reads one copy",
        ),
        (change_host("hub-3", roles=["audit"]), 'loads.lake: no host of hub runs it; add "load" to the roles of one'),
        (
            change_host("hub-2", roles=["load"]),
            "loads.lake: hub-2 and hub-3 would both run it; give one of them the role load",
        ),
        (
            lambda d: (
                d["loads"].append({"name": "east", "datacenter": "east", "root": d["loads"][0]["root"] + "/"}),
                change_host("east-1", roles=["load"])(d),
            ),
            "loads.lake and loads.east write the same topics of hub and of east below one root: a table holds a topic "
            "of one cluster; give each datacenter a root",
        ),
        (
            lambda d: d.pop("loads"),
            "hosts.hub-3.roles: load has nothing to do; no table [[loads]] has datacenter hub",
        ),
        (
            lambda d: d["settings"]["broker"].update({"listeners": "PLAINTEXT://:9092"}),
            "settings.broker: listeners follows from the description of hosts; remove it",
        ),
        (
            lambda d: d["security"].update(sasl=True),
            "security.sasl needs security.tls = true: passwords would go over the wire in clear",
        ),
    ],
)
def test_faults_between_parts(change: Change, fault: str) -> None:
    assert fault in faults_of(example_company(change))


def test_faults_of_several_parts_are_found_at_once() -> None:
    company = example_company(
        change_host("east-3", zookeeper=None), change_host("west-2", brokers=[1]), change_host("hub-3", roles=["audit"])
    )
    assert [fault.partition(":")[0] for fault in faults_of(company)] == [
        "datacenters.west",
        "datacenters.east",
        "loads.lake",
    ]


def test_hosts_of_one_address_share_its_ports() -> None:
    found = faults_of(example_company(change_host("east-2", address="east-1.example.com")))
    assert any(
        "port 9092 of east-1.example.com is taken twice: by east-1/broker-1 and by east-2/broker-2" in f for f in found
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("2001:db8::1", "2001:0DB8:0::1"), ("a.example.com", "A.example.com"), ("127.0.0.1", "localhost")],
)
def test_an_address_is_the_same_however_it_is_written(one: str, other: str) -> None:
    ports = {"zookeeper": 3181, "zookeeper_follower": 4888, "zookeeper_election": 5888, "broker_http": 9070}
    changes = (change_host("east-1", address=one), change_host("west-1", address=other))
    assert any("port 9092 of" in fault for fault in faults_of(example_company(*changes)))
    found = faults_of(example_company(*changes, change_host("west-1", ports={**ports, "broker": 9082})))
    assert len(found) == 2
    assert all("each has" in fault and "give one another id" in fault for fault in found)


def test_a_host_may_have_several_addresses_and_none_of_them_twice() -> None:
    def bound(one: str | None, other: str | None) -> tuple[str, ...]:
        return faults_of(
            example_company(
                change_host("east-1", address="a.example.com", listen=one),
                change_host("east-2", address="a.example.com", listen=other),
            )
        )

    assert bound("10.0.0.1", "10.0.0.2") == ()
    assert len(bound("10.0.0.1", "10.0.0.1")) == len(bound("10.0.0.1", None)) == 5


def test_a_long_chain_of_mirrors_is_no_circle() -> None:
    names = [f"dc{number}" for number in range(9)]

    def chain(document: Document) -> None:
        document["datacenters"] = [{"name": name} for name in names]
        document["hosts"] = [
            {
                "name": name,
                "address": f"{name}.example.com",
                "datacenter": name,
                "zookeeper": 1,
                "brokers": [1],
                "roles": ["mirror"],
            }
            for name in names
        ]
        document["hosts"][0]["roles"] = []
        document["mirrors"] = [
            {"destination": name, "sources": [names[number]], "topics": [".*"]} for number, name in enumerate(names[1:])
        ]
        document["loads"] = []

    assert faults_of(example_company(chain)) == ()
    closed = example_company(
        chain,
        change_host("dc0", roles=["mirror"]),
        added("mirrors", destination="dc0", sources=["dc8"], topics=[".*"]),
    )
    assert [fault.count(" > ") for fault in faults_of(closed)] == [9]


def both_ways(east: list[str], west: list[str], *, exclude: list[str] | None = None) -> tuple[str, ...]:
    """Return the faults of mirrors between east and west with these topics; `exclude`: those of the mirror of west."""

    def change(document: Document) -> None:
        document["mirrors"] = [
            {"destination": "east", "sources": ["west"], "topics": east},
            {"destination": "west", "sources": ["east"], "topics": west, "topics_exclude": exclude or []},
        ]
        document["datacenters"].pop()
        document["loads"] = []
        document["hosts"] = [host for host in document["hosts"] if host["datacenter"] != "hub"]
        for host in document["hosts"]:
            host["roles"] = ["mirror"] if host["name"].endswith("-3") else []

    return faults_of(example_company(change))


def test_mirrors_in_both_directions_are_sound_if_their_patterns_have_no_topic_in_common() -> None:
    assert both_ways([r"west\..*"], [r"east\..*", "orders"]) == ()
    assert both_ways([r"west\..*"], [".*"], exclude=[r"west\..*"]) == ()
    assert both_ways([r"west\..*"], [".*"], exclude=[r"west\.a.*"]) != ()
    assert both_ways([r"we*st\..*"], [r"w.*"]) != ()
    assert both_ways([r"(west|east)\..*"], [r"east\..*"]) != ()


def to_archive(topics: list[str]) -> tuple[str, ...]:
    """Return the faults of the example with an archive that copies the hub and east."""

    def change(document: Document) -> None:
        document["datacenters"].append({"name": "archive"})
        host = {"name": "archive-1", "address": "archive-1.example.com", "datacenter": "archive"}
        document["hosts"].append({**host, "zookeeper": 1, "brokers": [1], "roles": ["mirror"]})
        document["mirrors"].append({"destination": "archive", "sources": ["hub", "east"], "topics": topics})

    return faults_of(example_company(change))


def test_a_topic_that_comes_by_two_ways_would_be_doubled() -> None:
    assert to_archive(["clicks", ".*"]) == (
        "mirrors: the topic clicks would come to archive twice, its records doubled: east > archive and east > hub > "
        "archive; exclude it from one mirror (topics_exclude), or take a source away",
    )
    assert [fault.split(" would ")[0] for fault in to_archive(["_schemas"])] == ["mirrors: the topic _schemas"]
    assert to_archive([r"private\.clicks"]) == ()


def test_hundreds_of_topics_and_patterns_are_compared_in_no_time() -> None:
    """More than Python keeps compiled: each comparison would compile them anew, for minutes."""

    def change(document: Document) -> None:
        for number, mirror in enumerate(document["mirrors"][:2]):
            mirror["topics"] += [f"orders-{number}-{each}" for each in range(300)]
            mirror["topics"] += [rf"clicks-{number}-{each}\..*" for each in range(300)]
        document["mirrors"][0]["topics"].remove(".*")

    started_s = time.process_time()
    assert faults_of(example_company(change)) == ()
    assert time.process_time() - started_s < 10
