"""Item x12: what the audit knows is in logs and audit topics alone. Whoever dies counts, or reads, again."""

from pathlib import Path
from random import Random

import pytest

from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.ledger.ledger import Ledger
from tests.support.audited.cells import FIRST, SECOND, assert_exact
from tests.support.audited.forgeries import lose_one
from tests.support.audited.way import GRACE_MS, PARTITIONS, PENDING_MAX_MS, RECORDS, Way


def verdicts(hours: list[AuditedHour]) -> list[object]:
    return [(one.hour_ms, one.status, dict(one.stages), [found.text for found in one.findings]) for one in hours]


@pytest.mark.parametrize("seed", range(10))
def test_a_service_that_lost_all_says_the_same_again(seed: int, tmp_path: Path) -> None:
    """It reads the topics from their beginning; clusters in any order, some events twice."""
    way, rng = Way(tmp_path), Random(seed)
    way.forge["replica"] = lose_one
    way.run()
    events = [*way.events, *rng.choices(way.events, k=len(way.events) // 3)]
    rng.shuffle(events)
    ledger = Ledger()
    for event in events:
        ledger.apply(decode_count_report(event))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    again = judge.judge(way.expectations(), way.now_ms)
    assert verdicts(again.hours()) == verdicts(way.judgement().hours())


@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("step", range(4))
def test_a_broker_that_is_killed_at_any_step_counts_again_from_its_log(
    step: int, has_checkpoints: bool, tmp_path: Path
) -> None:
    way = Way(tmp_path)

    def kill_at(now: int) -> None:
        if now != step:
            return
        way.live.kill()
        if not has_checkpoints:
            for path in tmp_path.glob("east-1/*/audit-checkpoint"):
                path.unlink()
        way.live.start()

    way.produce()
    kill_at(0)
    way.copy()
    way.report()
    kill_at(1)
    way.produce(SECOND, 2)
    kill_at(2)
    way.report()
    kill_at(3)
    way.produce(SECOND, 1)
    way.finish()
    assert_exact(way)


@pytest.mark.parametrize("has_foreign_records", [False, True])
def test_a_counter_that_counts_again_from_the_middle_of_an_hour_makes_no_loss(
    has_foreign_records: bool, tmp_path: Path
) -> None:
    """All brokers lost their checkpoints, and their logs no longer have the beginning of the hour."""
    way = Way(tmp_path)
    way.produce()
    way.finish_stages()
    way.report()
    way.live.delete_records(PARTITIONS[0], 2 * RECORDS)
    for path in tmp_path.glob("east-*/*/audit-checkpoint"):
        path.unlink()
    for index in (0, 1):
        way.live.kill(index)
        way.live.start(index)
    way.produce(FIRST, 1)
    way.produce(FIRST, 6, is_foreign=has_foreign_records)
    way.produce(SECOND)
    way.finish()
    hour = way.hours()[FIRST]
    assert hour.status is Status.UNKNOWN, [one.text for one in hour.findings]
    assert any("checkpoint" in one.reason for one in hour.missing_witnesses)
