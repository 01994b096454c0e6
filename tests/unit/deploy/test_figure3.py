"""What the figure of `deploy/figure3` is made of, and how it counts delays."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.figure3.delays import MAX_MS, Delays, delays_of
from deploy.figure3.page_views import RECEIVED, event_of, schema
from deploy.figure3.plan import HUB, LIVE, Plan
from deploy.figure3.users import lines_of
from pipeline.cli.demo.access_log import parse_line
from pipeline.deployment.faults import faults_of

TIME = "01/Nov/2026:12:00:00 +0000"
SOME_DELAYS = st.lists(st.integers(0, MAX_MS), min_size=1)


def test_the_description_has_no_faults_and_every_host_an_address_of_its_own() -> None:
    plan = Plan()
    assert faults_of(plan.company) == ()
    addresses = [address for _, address in plan.hosts.values()]
    assert len(set(addresses)) == len(addresses)
    assert all(address.startswith(f"{plan.subnets[name]}.") for name, address in plan.hosts.values())
    assert set(plan.subnets) == {*LIVE, HUB}
    assert plan.lake == ("hdfs://10.83.3.4:8020", "/lake")
    assert plan.address(plan.lake_host) in plan.lake[0]


@pytest.mark.parametrize("datacenter", LIVE)
def test_a_balancer_sends_requests_to_the_front_ends_of_its_datacenter(datacenter: str) -> None:
    settings = Plan().balancer_settings(datacenter)
    servers = [line.split()[1] for line in settings.splitlines() if line.split()[:1] == ["server"]]
    assert servers == [f"{datacenter}-front-1", f"{datacenter}-front-2"]


def test_users_of_a_datacenter_are_its_own_and_their_lines_are_page_views() -> None:
    lines = [[f"{before}[{TIME}]{after}" for before, after in islice(lines_of(n, 2), 100)] for n in range(2)]
    events = [event_of(parse_line(line), 5) for line in [*lines[0], *lines[1]]]
    assert {event["time"] for event in events} == {1_793_534_400_000}
    assert lines[0] != lines[1]
    assert {field["name"] for field in json.loads(schema())["fields"]} == events[0].keys() >= {RECEIVED}


@given(SOME_DELAYS, SOME_DELAYS)
def test_delays_are_those_that_were_counted(first: list[int], then: list[int]) -> None:
    delays = Delays()
    for delay in first:
        delays.note(delay)
    earlier = delays_of([delays.document()])
    delays.note_all(np.array(then, np.int64))
    assert delays.records == len(first) + len(then)
    since = delays_of([delays.document()]).since(earlier)
    assert since.records == len(then)
    expected = np.percentile(then, [50, 95, 99], method="inverted_cdf")
    assert list(since.percentiles().values()) == list(expected)
    assert Delays().percentiles() == {"p50": None, "p95": None, "p99": None}
