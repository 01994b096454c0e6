"""How long judgements hold."""

import time
from typing import Any

import pytest

from pipeline.audit.judgement.judge import Judge
from tests.support.audit_site import AuditSite
from tests.support.audited_way import WholeWay, signs


async def test_a_judgement_that_only_waited_for_the_processor_holds_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    site = AuditSite()
    site.apply([*WholeWay().reports(), *signs()])
    site.read_all()
    judge = Judge.judge

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return judge(*arguments)

    monkeypatch.setattr(Judge, "judge", slow)
    async with site.asked():
        assert (await site.judgements.current()).cpu_s < 0.2
