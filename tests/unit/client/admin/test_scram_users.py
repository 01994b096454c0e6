"""Users with SCRAM credentials, as a client sees them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.client.admin.scram_users import (
    UserScramCredential,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from pipeline.coordination.scram_znodes import ScramHash
from pipeline.credentials import Secret
from tests.support.brokers import serving_cluster

TIMEOUT_S = 60.0


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_credentials_are_in_one_order_whatever_the_order_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_reversed: bool
) -> None:
    """Apache Kafka has them in the order of a hash map, which differs from one start of a broker to the next."""
    async with serving_cluster(tmp_path) as cluster:
        wanted = [
            UserScramCredential(
                user=user, kind=kind, iterations=4096, password=Secret("pencil"), salt=b"salt of 15 byte"
            )
            for user in ("bob", "alice")
            for kind in ScramHash
        ]
        await alter_user_scram_credentials(cluster, wanted, timeout_s=TIMEOUT_S)
        ask = cluster.request_any

        async def request_any(*arguments: Any, **named: Any) -> Any:
            answer = await ask(*arguments, **named)
            turn = slice(None, None, -1 if is_reversed else 1)
            results = [replace(each, credential_infos=each.credential_infos[turn]) for each in answer.results[turn]]
            return replace(answer, results=results)

        monkeypatch.setattr(cluster, "request_any", request_any)
        found = await describe_user_scram_credentials(cluster, timeout_s=TIMEOUT_S)
        assert [(user, [*kinds]) for user, kinds in found.items()] == [("alice", [*ScramHash]), ("bob", [*ScramHash])]
