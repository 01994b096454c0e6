"""Users with SCRAM credentials: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

The client hashes passwords. Neither a password nor its hash is in an error.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import trio

from pipeline.client.admin.controller import request_from_controller
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.coordination.scram_znodes import ScramHash, salted_password
from pipeline.credentials import Secret
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from pipeline.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredential:
    """A credential to set: a user, and the password hashed with a salt."""

    user: str
    kind: ScramHash
    iterations: int
    password: Secret
    salt: bytes
    """Random bytes, new for each credential."""


async def describe_user_scram_credentials(
    cluster: Cluster, users: Sequence[str] = (), *, timeout_s: float
) -> dict[str, dict[ScramHash, int]]:
    """Return the iterations of each credential of these users, or of all, by user. Users without any are left out.

    Users and their credentials are sorted: brokers give them in any order. Raises KafkaError.
    """
    wanted = tuple(UserName(name=user) for user in dict.fromkeys(users))
    response: DescribeUserScramCredentialsResponse = await cluster.request_any(
        DescribeUserScramCredentialsRequest(users=wanted or None), timeout_s=timeout_s
    )
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"users: {response.error_message or 'refused'}")
    found: dict[str, dict[ScramHash, int]] = {}
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(result.error_code, f"user {result.user}: {result.error_message or 'refused'}")
        iterations = {info.mechanism: info.iterations for info in result.credential_infos}
        found[result.user] = {kind: iterations[kind.number] for kind in ScramHash if kind.number in iterations}
    return dict(sorted(found.items()))


async def alter_user_scram_credentials(
    cluster: Cluster,
    upsertions: Sequence[UserScramCredential] = (),
    deletions: Iterable[tuple[str, ScramHash]] = (),
    *,
    timeout_s: float,
) -> None:
    """Set and remove credentials. Those of one user follow each other: Apache Kafka takes one of each user at a time.

    Waits until a controller has answered, at most `timeout_s`. A request whose answer was lost may have been done: what
    sets credentials is safe to repeat. Raises KafkaError for the first user that is refused; earlier changes stay.
    """
    deadline = trio.current_time() + timeout_s
    changes: defaultdict[str, list[ScramCredentialDeletion | ScramCredentialUpsertion]] = defaultdict(list)
    for user, kind in deletions:
        changes[user].append(ScramCredentialDeletion(name=user, mechanism=kind.number))
    for wanted in upsertions:
        changes[wanted.user].append(await trio.to_thread.run_sync(_hashed, wanted))
    for turn in zip_longest(*changes.values()):
        request = AlterUserScramCredentialsRequest(
            deletions=tuple(change for change in turn if isinstance(change, ScramCredentialDeletion)),
            upsertions=tuple(change for change in turn if isinstance(change, ScramCredentialUpsertion)),
        )
        await _alter_at_controller(cluster, request, deadline)


async def _alter_at_controller(cluster: Cluster, request: AlterUserScramCredentialsRequest, deadline: float) -> None:
    """Send changes until the controller has taken them. Raises KafkaError if it refuses one."""
    failures = 0
    while True:
        try:
            if failures or not cluster.view.brokers:
                await cluster.refresh(timeout_s=max(0.001, deadline - trio.current_time()))
            left_s = min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000)
            response: Any = await request_from_controller(cluster, request, timeout_s=max(0.001, left_s))
        except UNREACHABLE as error:
            failure: Exception = error
        else:
            refused = [result for result in response.results if result.error_code != ErrorCode.NONE]
            if not refused:
                return
            reason = f"user {refused[0].user}: {refused[0].error_message or 'refused'}"
            failure = KafkaError(refused[0].error_code, reason)
            if failure.code is not ErrorCode.NOT_CONTROLLER:
                raise failure
        failures += 1
        if not await cluster.back_off(failures, deadline):
            raise failure


def _hashed(wanted: UserScramCredential) -> ScramCredentialUpsertion:
    password = wanted.password.reveal()
    return ScramCredentialUpsertion(
        name=wanted.user,
        mechanism=wanted.kind.number,
        iterations=wanted.iterations,
        salt=wanted.salt,
        salted_password=salted_password(wanted.kind, password, wanted.salt, wanted.iterations),
    )
