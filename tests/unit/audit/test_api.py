"""The documents of the audit over HTTP, of real counts: what they say, what they refuse, what polling costs."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest

from pipeline.audit.api import DAY_MS
from pipeline.audit.collecting.judging import FIRST_READING_S, GREATEST_AGE_S, MAX_AGE_S, STALE_S
from pipeline.audit.events.report import LatencyCounts
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Finding, OffsetSpan, Witness
from pipeline.cli.audit.rendering import render
from pipeline.errors import NetworkError
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audit_site import AuditSite, document
from tests.support.audited_way import EAST, FULL, GRACE_MS, HOUR, HUB, LAKE, NOW_MS, Amounts, WholeWay, report, signs

LESS = Amounts(records=8, content=1_000)
NAME = "1970-02-11T16:00:00Z"


@pytest.fixture
def site() -> AuditSite:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.read_all()
    return site


async def readings(site: AuditSite, clock: trio.testing.MockClock, number: int) -> None:
    """Let time pass until expectations were read so often."""
    while site.readings < number:
        clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
    clock.jump(MAX_AGE_S * 2)


async def figures(site: AuditSite) -> None:
    """Wait until the figures of a judgement are there."""
    with trio.fail_after(60):
        while site.registry.get_sample_value("audit_hours", {"status": "exact"}) is None:
            await trio.sleep(0.005)


def lost(hour_ms: int = HOUR) -> Sequence[Any]:
    old: dict[str, Any] = {"created_ms": NOW_MS - 2 * GRACE_MS, "end": 200}
    return WholeWay(
        replica=LESS,
        loaded=LESS,
        hour_ms=hour_ms,
        producer_options={"created_ms": NOW_MS - 2 * GRACE_MS},
        live_options=old,
        replica_options=old,
        load_options=old,
    ).reports()


async def test_equal_counts_are_exact_and_say_what_they_rest_on(site: AuditSite) -> None:
    async with site.asked() as client:
        found = await document(client, "/v1/report")
    assert (found["verdict"], found["exact"], found["complete"]) == ("exact", True, True)
    (hour,) = found["hours"]
    assert (hour["hour"], hour["status"], hour["stages"]["loaded"]["records"]) == (NAME, "exact", 10)
    assert hour["rests_on"]
    assert list(found["watermarks"]) == ["clicks"]
    assert found["judged_ms"] == NOW_MS
    assert "1 of 1 hour exact." in render(found)


async def test_a_cluster_that_was_never_read_leaves_nothing_exact() -> None:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.collector.states["east"].ends_at(0, NOW_MS)
    async with site.asked() as client:
        found = await document(client, "/v1/report")
    assert (found["exact"], found["complete"], found["hours"][0]["status"]) == (False, False, "unknown")
    assert "hub: not read yet" in render(found)


async def test_documents_of_one_judgement_show_the_same_progress_of_reading(
    site: AuditSite, mock_clock: trio.testing.MockClock
) -> None:
    async with site.asked() as client:
        report = await document(client, "/v1/report")
        site.collector.states["hub"].fail("gone")
        status = await document(client, "/v1/status")
        assert (status["judged_ms"], status["clusters"]) == (report["judged_ms"], report["clusters"])
        mock_clock.jump(MAX_AGE_S * 2)
        assert (await document(client, "/v1/status"))["clusters"]["hub"]["error"] == "gone"


async def test_reports_are_answered_while_the_next_judgement_is_made(
    site: AuditSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, judge = threading.Event(), threading.Event(), Judge.judge

    def judge_slowly(*arguments: Any) -> Judgement:
        began.set()
        assert may_end.wait(60)
        return judge(*arguments)

    async with site.asked() as client, trio.open_nursery() as nursery:
        report = await document(client, "/v1/report")
        monkeypatch.setattr(Judge, "judge", judge_slowly)
        nursery.start_soon(site.judgements.current, GREATEST_AGE_S)
        try:
            await trio.to_thread.run_sync(began.wait, 60)
            with trio.fail_after(30):
                status = await document(client, "/v1/status")
        finally:
            may_end.set()
        assert (status["judged_ms"], status["verdict"]) == (report["judged_ms"], "exact")


async def test_no_judgement_from_before_a_cluster_was_read_is_shown_once_it_was() -> None:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.collector.states["east"].ends_at(0, NOW_MS)
    async with site.asked() as client:
        assert (await document(client, "/v1/report"))["verdict"] == "unknown"
        site.read_all()
        assert (await document(client, "/v1/report"))["verdict"] == "exact"


async def test_hours_before_the_death_of_a_cluster_stay_exact_and_later_ones_are_not(
    site: AuditSite, mock_clock: trio.testing.MockClock
) -> None:
    async with site.asked() as client:
        site.collector.states["hub"].fail("gone")
        found = await document(client, "/v1/report")
        assert (found["hours"][0]["status"], found["exact"]) == ("exact", False)
        bounded = await document(client, "/v1/report", to=HOUR + HOUR_MS)
        assert (bounded["exact"], bounded["complete"]) == (True, True)
        site.now_ms += HOUR_MS
        later = WholeWay(hour_ms=HOUR + HOUR_MS, producer_options={"instance": "p1", "revision": 2})
        site.apply([*later.reports(), *signs(created_ms=site.now_ms)])
        site.collector.states["east"].ends_at(0, site.now_ms)
        mock_clock.jump(MAX_AGE_S * 2)
        found = await document(client, "/v1/report")
    before, after = (hour["status"] for hour in found["hours"])
    assert before == "exact"
    assert after in ("pending", "unknown")


async def test_expectations_that_cannot_be_read_leave_nothing_exact(
    site: AuditSite, mock_clock: trio.testing.MockClock
) -> None:
    site.failure = NetworkError("no answer from the hub")
    async with site.asked() as client:
        found = await document(client, "/v1/report")
        assert (found["verdict"], found["hours"][0]["status"]) == ("unknown", "unknown")
        assert "no answer from the hub" in found["routes_error"]
        site.failure = None
        await readings(site, mock_clock, site.readings + 2)
        assert (await document(client, "/v1/report"))["exact"]


async def test_expectations_that_are_never_answered_become_a_missing_witness(
    site: AuditSite, mock_clock: trio.testing.MockClock
) -> None:
    async with site.asked() as client:
        assert (await document(client, "/v1/report"))["exact"]

        async def hang() -> Any:
            await trio.sleep_forever()

        site.judgements._read_expectations = hang
        mock_clock.jump(STALE_S + 5)
        found = await document(client, "/v1/report")
    assert (found["exact"], found["hours"][0]["status"]) == (False, "unknown")
    assert "were read for the last time at" in found["routes_error"]


async def test_the_first_judgement_waits_for_expectations_a_bounded_time(mock_clock: trio.testing.MockClock) -> None:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.read_all()

    async def hang() -> Any:
        await trio.sleep_forever()

    site.judgements._read_expectations = hang
    answers: list[Any] = []
    async with site.asked() as client, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await document(client, "/v1/report"))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        mock_clock.jump(FIRST_READING_S)
    assert answers[0]["hours"][0]["status"] == "unknown"
    assert "were not read yet" in answers[0]["routes_error"]


async def test_a_witness_of_another_topic_does_not_concern_the_report_on_this_one(site: AuditSite) -> None:
    site.expect(unknown=[Witness(name="mirror", reason="slow pattern", cluster="east", topic="other")])
    async with site.asked() as client:
        assert (await document(client, "/v1/report", topic="clicks"))["exact"]
        assert not (await document(client, "/v1/report"))["exact"]


async def test_a_loss_has_its_place_and_its_kind(site: AuditSite) -> None:
    site.apply(lost(HOUR - HOUR_MS))
    async with site.asked() as client:
        found = await document(client, "/v1/report", status="-")
        assert found["verdict"] == "difference"
        (hour,) = found["hours"]
        assert (hour["kind"], hour["findings"][0]["records"]) == ("missing", 2)
        everything = await document(client, "/v1/report")
        assert [hour["status"] for hour in everything["hours"]] == ["missing", "exact"]
        details = await document(client, f"/v1/hours/clicks/{HOUR - 1}")
        (partition,) = details["partitions"]
        assert (partition["source"], partition["replica"], partition["status"]) == (str(EAST), str(HUB), "missing")
        assert partition["stages"]["live"]["records"] == 10
        assert (partition["stages"]["live"]["first_offset"], partition["stages"]["live"]["last_offset"]) == (100, 109)
        assert details["partitions_in_all"] == 1
        flow = await document(client, "/v1/flow")
        (edge,) = flow["edges"]
        assert (edge["at"], edge["hours"], edge["missing_records"]) == ("replica", {"-": 1}, 2)
        stages = {(stage["stage"], stage["cluster"]): stage["records"] for stage in flow["stages"]}
        assert stages == {
            ("produced", "east"): 20,
            ("live", "east"): 20,
            ("replica", "hub"): 18,
            (f"loaded:{LAKE}", "hub"): 18,
        }


async def test_the_grid_has_a_letter_for_each_hour_and_counts_what_lies_outside(site: AuditSite) -> None:
    site.apply(lost(HOUR - 2 * HOUR_MS))
    site.apply(WholeWay(hour_ms=HOUR + 10_000 * HOUR_MS, producer_options={"revision": 9}).reports())
    async with site.asked() as client:
        found = await document(client, "/v1/status", **{"from": HOUR - 3 * HOUR_MS, "to": HOUR + HOUR_MS})
        (topic,) = found["topics"]
        assert (topic["start"], topic["letters"]) == (1, "- e")
        assert sum(topic["outside"].values()) == 1
        assert found["counts"] == {"-": 1, "e": 1}
        assert (found["first_ms"], found["last_ms"]) == (HOUR - 2 * HOUR_MS, HOUR + 10_000 * HOUR_MS)
        assert (await document(client, "/v1/status", topic="CLI"))["topics"]
        assert not (await document(client, "/v1/status", topic="x"))["topics"]
        assert not (await document(client, "/v1/status", status="q"))["topics"]
        default = await document(client, "/v1/status")
        assert (default["hours"], default["from_ms"] + default["hours"] * HOUR_MS) == (720, HOUR + 3 * HOUR_MS)


async def test_of_too_many_hours_the_worst_stay_and_the_verdict_is_about_all(site: AuditSite) -> None:
    for number in range(1, 6):
        site.apply(WholeWay(hour_ms=HOUR - number * HOUR_MS, producer_options={"revision": 20 + number}).reports())
    site.apply(lost(HOUR - 9 * HOUR_MS))
    async with site.asked() as client:
        for chosen in ({}, {"topic": "clicks"}):
            found = await document(client, "/v1/report", limit=2, **chosen)
            assert [hour["status"] for hour in found["hours"]] == ["missing", "exact"]
            assert (found["hours"][1]["hour"], found["hours_left_out"]) == (NAME, {"exact": 5})
            assert found["verdict"] == "difference"
            exact = await document(client, "/v1/report", status="e", limit=3, **chosen)
            assert (len(exact["hours"]), exact["hours_left_out"], exact["verdict"]) == (3, {"exact": 3}, "exact")


async def test_latencies_have_quantiles_by_window_and_stage(site: AuditSite) -> None:
    counts = LatencyCounts(0, HOUR, "1", ((100, 90), (200, 10)))
    one = replace(report(Tier.BROKER, "hub", HUB, {}), latencies=[counts])
    site.apply([one])
    async with site.asked() as client:
        found = await document(client, "/v1/latency", topic="clicks")
        (stage,) = found["stages"]
        assert (stage["stage"], stage["cluster"]) == ("replica", "hub")
        (point,) = stage["points"]
        assert (point["start_ms"], point["records"]) == (HOUR, 100)
        assert point["p50_ms"] < point["p95_ms"] == point["p99_ms"]
        assert (await client.get("/v1/latency")).status_code == 400


async def test_a_story_tells_counts_and_findings(site: AuditSite) -> None:
    site.apply(lost(HOUR - HOUR_MS))
    async with site.asked() as client:
        found = await document(client, f"/v1/explain/clicks/{HOUR - HOUR_MS}")
    assert (found["status"], found["verdict"], found["is_narrowed"]) == ("missing", "difference", False)
    assert any(found["findings"][0]["text"] in sentence for sentence in found["sentences"])


async def test_narrowing_is_bounded_and_its_failure_is_told() -> None:
    asked: list[Finding] = []

    async def narrow(finding: Finding, siblings: Sequence[Finding]) -> list[Finding]:
        asked.append(finding)
        if finding.source.partition:
            raise NetworkError("the broker is away")
        return [replace(finding, offsets=OffsetSpan(first=105, last=105), kind=DiscrepancyKind.MISSING)]

    site = AuditSite(narrow=narrow)
    site.apply([*lost(), *signs()])
    site.read_all()
    async with site.asked() as client:
        found = await document(client, f"/v1/explain/clicks/{HOUR}", narrow="true")
        assert (await client.get(f"/v1/explain/clicks/{HOUR}", params={"narrow": "1"})).status_code == 400
    assert (found["is_narrowed"], found["narrowing_error"]) == (True, None)
    assert [each["offsets"] for each in found["findings"]] == [[105, 105]]
    assert [finding.source for finding in asked] == [EAST]


async def test_polling_costs_nothing_while_nothing_changes(site: AuditSite, mock_clock: trio.testing.MockClock) -> None:
    async with site.asked() as client:
        first = await client.get("/v1/status")
        assert first.headers["audit-time"] == str(NOW_MS)
        site.now_ms += 1
        mock_clock.jump(MAX_AGE_S * 2)
        again = await client.get("/v1/status", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["audit-time"] == str(NOW_MS + 1)
        whole = await client.get("/v1/status")
        assert whole.json()["judged_ms"] == NOW_MS
        site.apply(lost(HOUR - HOUR_MS))
        mock_clock.jump(MAX_AGE_S * 2)
        changed = await client.get("/v1/status", headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200


async def test_many_pollers_share_a_judgement(site: AuditSite) -> None:
    numbers: list[int] = []
    async with site.asked() as client:

        async def poll() -> None:
            answer = await client.get("/v1/status")
            numbers.append(answer.status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(poll)
    assert numbers == [200] * 100
    assert site.judgements.latest is not None
    assert site.judgements.latest.number <= 3


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/v1/report?from=x", 400, "from"),
        ("/v1/report?status=nice", 400, "status"),
        ("/v1/report?limit=0", 400, "limit"),
        ("/v1/status?from=0&to=9999999999999", 400, "from"),
        ("/v1/status?from=2&to=1", 400, "from"),
        ("/v1/hours/clicks/yesterday", 400, "hour"),
        ("/v1/hours/clicks/0", 404, "clicks"),
        ("/v1/hours/%3Cscript%3E/0", 404, "<script>"),
        ("/v1/explain/typo/2026-01-01T00:00", 404, "typo"),
        (f"/v1/hours/clicks/{HOUR}?limit=1001", 400, "limit"),
        ("/v1/hours/" + "x" * 5_000 + "/0", 404, "xxx"),
        (f"/v1/hours/clicks/{-(2**62)}", 404, "clicks"),
    ],
)
async def test_a_wrong_question_gets_a_sentence(site: AuditSite, path: str, status: int, named: str) -> None:
    async with site.asked() as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert named in answer.json()["error"]
    assert len(answer.content) < 1_000
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_judgement_that_fails_gives_no_old_answer(
    site: AuditSite, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.asked() as client:
        assert (await client.get("/v1/report")).status_code == 200
        assert site.judgements.trouble() is None

        def fail(*_: Any) -> Any:
            raise ZeroDivisionError("boo")

        with monkeypatch.context() as patch:
            patch.setattr("pipeline.audit.judgement.judge.Judge.judge", fail)
            mock_clock.jump(MAX_AGE_S * 2)
            answer = await client.get("/v1/report")
            assert answer.status_code == 503
            assert "boo" in answer.json()["error"]
            assert "boo" in str(site.judgements.trouble())
        mock_clock.jump(MAX_AGE_S * 2)
        assert (await client.get("/v1/report")).status_code == 200


async def test_metrics_report_differences_completeness_and_latency(site: AuditSite) -> None:
    def sample(name: str, **labels: str) -> float | None:
        return site.registry.get_sample_value(name, labels)

    counts = LatencyCounts(0, HOUR, "1", ((100, 90), (200, 10)))
    site.apply([*lost(HOUR - HOUR_MS), replace(report(Tier.BROKER, "hub", HUB, {}), latencies=[counts])])
    assert sample("audit_judged_timestamp_seconds") is None
    async with site.asked(), trio.open_nursery() as nursery:
        nursery.start_soon(site.metrics.run)
        await figures(site)
        nursery.cancel_scope.cancel()
    assert sample("audit_differences", topic="clicks", stage="replica", kind="missing") == 1
    assert [sample("audit_hours", status=status) for status in ("exact", "missing", "unknown")] == [1, 1, 0]
    assert sample("audit_completeness_lag_seconds", topic="clicks") == float("inf")
    assert sample("audit_judged_timestamp_seconds") == NOW_MS / 1000
    where = {"topic": "clicks", "tier": "replica", "cluster": "hub"}
    p50, p99 = (sample("audit_end_to_end_latency_seconds", **where, quantile=share) for share in ("0.5", "0.99"))
    assert p50 is not None
    assert p99 is not None
    assert 0 < p50 < p99
    assert sample("audit_cluster_up", cluster="east") == 1
    assert sample("audit_cluster_read_to_timestamp_seconds", cluster="hub") == NOW_MS / 1000
    site.collector.states["hub"].fail("gone")
    site.collector.states["east"].unreadable = 2
    assert sample("audit_cluster_up", cluster="hub") == 0
    assert sample("audit_events_unreadable_total", cluster="east") == 2


def other_topics(count: int) -> list[Any]:
    return [report(Tier.BROKER, "east", TopicPartition(f"t{number:04}", 0), {HOUR: FULL}) for number in range(count)]


@pytest.mark.long
async def test_topics_in_metrics_are_bounded() -> None:
    site = AuditSite()
    site.apply(other_topics(1_010))
    site.read_all()
    async with site.asked(), trio.open_nursery() as nursery:
        nursery.start_soon(site.metrics.run)
        await figures(site)
        nursery.cancel_scope.cancel()
    (lags,) = [metric for metric in site.metrics.collect() if metric.name == "audit_completeness_lag_seconds"]
    assert len(lags.samples) == 1_000
    left = site.registry.get_sample_value("audit_topics_left_out", {"metric": "audit_completeness_lag_seconds"})
    assert left == 10


@pytest.mark.parametrize("wrong_by_ms", [DAY_MS, -DAY_MS])
async def test_a_clock_of_the_audit_that_is_wrong_by_a_day_makes_no_hour_exact_that_is_being_written(
    wrong_by_ms: int,
) -> None:
    spoken_ms = HOUR + HOUR_MS // 2
    options: dict[str, Any] = {"created_ms": spoken_ms}
    way = WholeWay(producer_options=options, live_options=options, replica_options=options, load_options=options)
    site = AuditSite(now_ms=spoken_ms + wrong_by_ms)
    site.apply([*way.reports(), *signs(created_ms=spoken_ms)])
    site.read_all()
    async with site.asked() as client:
        found = await document(client, "/v1/report")
        details = await document(client, f"/v1/hours/clicks/{HOUR}")
    assert found["hours"][0]["status"] in ("pending", "unknown")
    assert found["hours"][0]["missing_witnesses"]
    assert details["partitions"][0]["status"] in ("pending", "unknown")


async def test_names_that_are_no_unicode_stop_neither_stories_nor_metrics(site: AuditSite) -> None:
    """JSON may have any code units, and a host or root any bytes."""
    killed = report(Tier.PRODUCER, "east", EAST, {}, instance="p2", revision=1, created_ms=HOUR, closed_ms=HOUR)
    assert killed.life is not None
    site.apply([replace(killed, life=replace(killed.life, host="web\udcff"))])
    site.apply([report(Tier.BROKER, "east", TopicPartition("t\ud800", 0), {HOUR: FULL})])
    async with site.asked() as client, trio.open_nursery() as nursery:
        found = await document(client, f"/v1/explain/clicks/{HOUR}")
        assert any("web\udcff" in sentence for sentence in found["sentences"])
        nursery.start_soon(site.metrics.run)
        await figures(site)
        nursery.cancel_scope.cancel()
    assert b'topic="t\\\\ud800"' in generate_latest(site.registry)


async def test_names_from_outside_are_text_in_every_document() -> None:
    site = AuditSite()
    hostile = TopicPartition('<img src=x onerror="alert(1)">\u202e', 0)
    site.apply([report(Tier.BROKER, "east", hostile, {HOUR: FULL}), *signs()])
    site.read_all()
    async with site.asked() as client:
        for path in ("/v1/report", "/v1/status", "/v1/flow"):
            answer = await client.get(path)
            assert answer.headers["content-type"] == "application/json"
            assert hostile.topic in json.dumps(answer.json(), ensure_ascii=False).replace('\\"', '"')
        place = f"/v1/explain/{quote(hostile.topic, safe='')}/{HOUR}"
        assert (await document(client, place))["topic"] == hostile.topic
