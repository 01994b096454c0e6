"""Znodes of a mirror group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CoordinationError
from pipeline.mirror.sharing.assignment import Holding, WorkUnit, duties_of
from pipeline.mirror.sharing.group_znodes import (
    MAX_EPOCH,
    MAX_PART_BYTES,
    AssignmentHead,
    MemberReport,
    MirrorProcess,
    Refusal,
    decode_parts,
    encode_parts,
    number_of,
)

units = st.builds(
    WorkUnit, st.sampled_from(["east", "west"]), st.sampled_from(["", "clicks", "a.b"]), st.integers(-1, 50)
)
holdings = st.builds(Holding, st.sampled_from(["m1", "m2"]), st.integers(0, MAX_EPOCH))


@given(st.dictionaries(units, holdings, max_size=60))
def test_an_assignment_comes_back(assigned: dict[WorkUnit, Holding]) -> None:
    parts = encode_parts(assigned)
    assert decode_parts([f"/{number}" for number in range(len(parts))], parts) == assigned


@pytest.mark.long
@pytest.mark.parametrize(("topics", "partitions"), [(10_000, 1), (1, 100_000), (100, 100)])
def test_large_assignments_are_divided_into_parts_that_zookeeper_takes(topics: int, partitions: int) -> None:
    assigned = {
        WorkUnit("east", f"{'long' * 20}-{topic}", number): Holding(f"member-{number % 3}", 1_800_000_000_000)
        for topic in range(topics)
        for number in range(partitions)
    }
    parts = encode_parts(assigned)
    assert max(map(len, parts)) <= MAX_PART_BYTES + 1_000
    assert decode_parts(["/"] * len(parts), parts) == assigned


def test_a_unit_of_two_members_is_refused() -> None:
    parts = encode_parts({WorkUnit("east", "clicks", 0): Holding("m1", 5)})
    with pytest.raises(CoordinationError, match="gives east/clicks-0 to two members"):
        decode_parts(["/a", "/b"], [*parts, *encode_parts({WorkUnit("east", "clicks", 0): Holding("m2", 5)})])


def test_reports_come_back_and_the_highest_rates_go_into_the_znode() -> None:
    rates = {WorkUnit("east", "clicks", 0): 12.0, WorkUnit("east", "clicks", 1): 3.0, duties_of("west"): 0.0}
    report = MemberReport(rates=rates, refusals={WorkUnit("east", "clicks", 3): Refusal(5, 9)})
    assert MemberReport.decode("/", report.encode()) == report
    many = {WorkUnit("east", f"{'long' * 20}-{number}", 0): float(number) for number in range(10_000)}
    data = MemberReport(rates=many, refusals=dict.fromkeys(many, Refusal(5, 9))).encode()
    assert len(data) <= MAX_PART_BYTES
    kept = MemberReport.decode("/", data)
    assert min(kept.rates.values()) == 10_000 - len(kept.rates)
    assert kept.refusals
    older = MemberReport.decode("/", b'{"version":1,"rows":[]}')
    assert older == MemberReport()


def test_members_and_heads_come_back_and_nonsense_names_its_path() -> None:
    member = MirrorProcess(host="mirror-1", pid=7, http="127.0.0.1:8090", joined_ms=5)
    assert MirrorProcess.decode("/", member.encode()) == member
    head = AssignmentHead(number=3, parts=["3-1f-0"])
    assert AssignmentHead.decode("/", head.encode()) == head
    for decode in (MirrorProcess.decode, AssignmentHead.decode, MemberReport.decode):
        with pytest.raises(CoordinationError, match="/here"):
            decode("/here", b"nonsense")
    assert [number_of(name) for name in ("12-1f-0", "x", "9" * 30, "")] == [12, 0, 0, 0]
