"""DescribeUserScramCredentials (50), v0: users with SCRAM credentials, without the secrets (KIP-554)."""

from collections import Counter

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, shortened
from pipeline.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    broker: BrokerContext, request: DescribeUserScramCredentialsRequest, _version: int, _caller: Caller
) -> LargeAnswer:
    """Answer at once."""
    named = Counter(user.name for user in request.users or ())
    users = named or list(broker.scram.users())
    results = tuple(_describe(broker, user, named[user]) for user in users)
    return LargeAnswer(DescribeUserScramCredentialsResponse(results=results))


def _describe(broker: BrokerContext, user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        message = shortened(f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}")
        return DescribeUserScramCredentialsResult(
            user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message
        )
    found = broker.scram.of(user)
    if not found:
        message = shortened(f"Attempt to describe a user credential that does not exist: {user}")
        return DescribeUserScramCredentialsResult(
            user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message
        )
    return DescribeUserScramCredentialsResult(
        user=user,
        credential_infos=tuple(
            CredentialInfo(mechanism=kind.number, iterations=credential.iterations)
            for kind, credential in found.items()
        ),
    )
