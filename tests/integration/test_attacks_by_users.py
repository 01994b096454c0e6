"""A secured broker, attacked by users who know their password and have few rights, or none."""

import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.secured_broker import secured_broker

MANY = 3000


def names(count: int) -> list[str]:
    return [f"nothing-of-mine-{number}" for number in range(count)]


@pytest.mark.parametrize("count", [10, MANY])
async def test_a_thread_decides_about_many_names_so_that_others_need_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("mallory") as mallory:
        assert broker.context.acls is not None
        deciding: set[int] = set()
        allows = broker.context.acls.allows

        def noting(*asked: Any) -> bool:
            deciding.add(threading.get_ident())
            return allows(*asked)

        monkeypatch.setattr(broker.context.acls, "allows", noting)
        found = await mallory(FindCoordinatorRequest(coordinator_keys=names(count)))
        assert [each.key for each in found.coordinators] == names(count)
        assert {each.error_code for each in found.coordinators} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
        described = await mallory(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names(count)]))
        assert {each.error_code for each in described.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert (threading.get_ident() in deciding) == (count < MANY)
