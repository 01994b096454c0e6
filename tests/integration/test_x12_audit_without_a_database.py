"""Item x12: what the audit knows is in logs and audit topics alone. Whoever dies counts, or reads, again."""

from pathlib import Path
from random import Random

import pytest

from pipeline.audit.events.encoding import decode_report
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour
from pipeline.audit.ledger.ledger import Ledger
from tests.support.audited.cells import SECOND, assert_exact
from tests.support.audited.forgeries import lose_one
from tests.support.audited.way import GRACE_MS, PENDING_MAX_MS, Way


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
        ledger.apply(decode_report(event))
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
