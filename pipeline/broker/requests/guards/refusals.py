"""Answers that refuse a request as a whole: the error stands with each element, where clients look for it.

Source: `getErrorResponse` of Apache Kafka's requests.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlteredEntryData
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResult,
)
from pipeline.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest
from pipeline.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest
from pipeline.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResult,
)
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, PartitionResult, ReplicaElectionResult
from pipeline.protocol.schema import Message

_Fields = dict[str, Any]


def refused_as_whole(body: Message, code: ErrorCode) -> Message:
    """Return the answer to a request that is refused with this error."""
    error = {"error_code": code, "error_message": code.message}
    answer: type[Any] = ApiKey(body.API_KEY).response
    fields = {name: value for name, value in error.items() if name in answer.__dataclass_fields__}
    of_elements = _OF_ELEMENTS.get(ApiKey(body.API_KEY))
    made: Message = answer(**fields, **({} if of_elements is None else of_elements(body, error)))
    return made


def _of_created_acls(body: CreateAclsRequest, error: _Fields) -> _Fields:
    return {"results": (AclCreationResult(**error),) * len(body.creations)}


def _of_deleted_acls(body: DeleteAclsRequest, error: _Fields) -> _Fields:
    return {"filter_results": (DeleteAclsFilterResult(**error),) * len(body.filters)}


def _of_quotas(body: AlterClientQuotasRequest, error: _Fields) -> _Fields:
    return {"entries": tuple(AlteredEntryData(entity=entry.entity, **error) for entry in body.entries)}


def _of_credentials(body: AlterUserScramCredentialsRequest, error: _Fields) -> _Fields:
    users = {change.name for changes in (body.deletions, body.upsertions) for change in changes}
    return {"results": tuple(AlterUserScramCredentialsResult(user=user, **error) for user in sorted(users))}


def _of_elections(body: ElectLeadersRequest, error: _Fields) -> _Fields:
    return {
        "replica_election_results": tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(partition_id=partition, **error) for partition in topic.partitions
                ),
            )
            for topic in body.topic_partitions or ()
        )
    }


def _of_reassignments(body: AlterPartitionReassignmentsRequest, error: _Fields) -> _Fields:
    return {
        "responses": tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ReassignablePartitionResponse(partition_index=partition.partition_index, **error)
                    for partition in topic.partitions
                ),
            )
            for topic in body.topics
        )
    }


def _of_described_users(body: DescribeUserScramCredentialsRequest, error: _Fields) -> _Fields:
    return {
        "results": tuple(DescribeUserScramCredentialsResult(user=asked.name, **error) for asked in body.users or ())
    }


_OF_ELEMENTS: Mapping[ApiKey, Callable[[Any, _Fields], _Fields]] = {
    ApiKey.CREATE_ACLS: _of_created_acls,
    ApiKey.DELETE_ACLS: _of_deleted_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: _of_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_credentials,
    ApiKey.ELECT_LEADERS: _of_elections,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_reassignments,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_described_users,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda *_: {"entries": None},
}
