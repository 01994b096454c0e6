"""AlterUserScramCredentials (51), v0: set and remove SCRAM credentials in ZooKeeper (KIP-554).

All changes of a user are made, or none. The password is hashed by the client, and never comes here.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.security.sasl.mechanism import MAX_USER_LETTERS
from pipeline.coordination.interface import NodeValue
from pipeline.coordination.scram_znodes import (
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    MIN_SALT_BYTES,
    ScramCredential,
    ScramHash,
    user_path,
)
from pipeline.coordination.update import update
from pipeline.coordination.znodes import decode_config, encode_config
from pipeline.errors import NodeContendedError, PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

TIMEOUT_S = 30.0
"""Time for all users of a request."""

_KINDS = {kind.number: kind for kind in ScramHash}
_Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle(
    broker: BrokerContext, request: AlterUserScramCredentialsRequest, _version: int, _caller: Caller
) -> AlterUserScramCredentialsResponse:
    """Answer when all is written."""
    changes: dict[str, list[_Change]] = {}
    every: list[_Change] = [*request.deletions, *request.upsertions]
    for change in every:
        changes.setdefault(change.name, []).append(change)
    deadline = trio.current_time() + TIMEOUT_S
    results = [await _alter(broker, user, wanted, deadline) for user, wanted in changes.items()]
    return AlterUserScramCredentialsResponse(results=results)


async def _alter(
    broker: BrokerContext, user: str, wanted: Sequence[_Change], deadline: float
) -> AlterUserScramCredentialsResult:
    try:
        if not user or len(user) > MAX_USER_LETTERS:
            raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty, or very long")
        kinds = Counter(_kind(change.mechanism) for change in wanted)
        if max(kinds.values()) > 1:
            raise KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
        credentials = {_kind(change.mechanism): _credential(change) for change in wanted}
        with trio.fail_at(deadline):
            await _write(broker, user, credentials)
    except trio.TooSlowError:
        message = "ZooKeeper did not answer in time."
        return AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message)
    except PipelineError as error:
        failure = failure_of(error)
        return AlterUserScramCredentialsResult(user=user, error_code=failure.code, error_message=failure.message)
    return AlterUserScramCredentialsResult(user=user)


def _kind(number: int) -> ScramHash:
    if number not in _KINDS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return _KINDS[number]


def _credential(change: _Change) -> ScramCredential | None:
    """Return the credential to set; None for one to remove. Raises KafkaError."""
    if isinstance(change, ScramCredentialDeletion):
        return None
    kind = _kind(change.mechanism)
    if change.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too few iterations: at least {MIN_ITERATIONS}")
    if change.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too many iterations: at most {MAX_ITERATIONS}")
    if not MIN_SALT_BYTES <= len(change.salt) <= MAX_SALT_BYTES:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A salt has from {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes"
        )
    if len(change.salted_password) != hashlib.new(kind.algorithm).digest_size:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password has not the size of the hash")
    return ScramCredential.of_salted_password(
        kind, bytes(change.salted_password), bytes(change.salt), change.iterations
    )


async def _write(broker: BrokerContext, user: str, credentials: dict[ScramHash, ScramCredential | None]) -> None:
    path = user_path(user)
    written: dict[str, str] = {}

    def decide(found: NodeValue | None) -> bytes | None:
        nonlocal written
        settings = {} if found is None else dict(decode_config(path, found.data))
        for kind, credential in credentials.items():
            if credential is not None:
                settings[kind.value] = credential.encode()
            elif settings.pop(kind.value, None) is None and not written:
                raise KafkaError(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                )
        written = settings
        return encode_config(settings)

    try:
        await update(broker.session.zookeeper, path, decide)
    except NodeContendedError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the credential; try again.") from error
    broker.scram.set(user, written)
