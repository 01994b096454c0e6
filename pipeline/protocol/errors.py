"""Kafka's error codes, each with its retriable flag, and the exception that carries one.

Codes and flags are those of apache/kafka `org.apache.kafka.common.protocol.Errors`.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Self

from pipeline.errors import PipelineError


class ErrorCode(IntEnum):
    """An error code on the wire. `retriable`: the same request may succeed later. `message`: a sentence for people."""

    retriable: bool
    message: str

    if not TYPE_CHECKING:

        def __new__(cls, value: int, retriable: bool, message: str) -> Self:  # noqa: D102
            member = int.__new__(cls, value)
            member._value_ = value
            member.retriable = retriable
            member.message = message
            return member

    @classmethod
    def of(cls, value: int) -> "ErrorCode":
        """Return the code of this number; UNKNOWN_SERVER_ERROR for a number that this table does not know."""
        try:
            return cls(value)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, False, "The server experienced an unexpected error when processing the request"
    NONE = 0, False, "No error"
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside of the log of this partition"
    CORRUPT_MESSAGE = 2, True, "The batch has a wrong checksum, size or key, or is otherwise corrupt"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server does not host this topic-partition"
    INVALID_FETCH_SIZE = 4, False, "The requested fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the partition's leader, or holds no replica of it"
    REQUEST_TIMED_OUT = 7, True, "The request timed out"
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available for the requested topic-partition"
    MESSAGE_TOO_LARGE = 10, False, "A batch is larger than max.message.bytes of its topic"
    STALE_CONTROLLER_EPOCH = 11, False, "The controller moved to another broker"
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata field of the offset request was too large"
    NETWORK_EXCEPTION = 13, True, "The server disconnected before a response was received"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is loading and hence can't process requests"
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available"
    NOT_COORDINATOR = 16, True, "This is not the correct coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "The request attempted to perform an operation on an invalid topic"
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment of the log"
    NOT_ENOUGH_REPLICAS = 19, True, "Messages are rejected since there are fewer in-sync replicas than required"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but to fewer in-sync replicas than required"
    INVALID_REQUIRED_ACKS = 21, False, "Produce request specified an invalid value for required acks"
    ILLEGAL_GENERATION = 22, False, "Specified group generation id is not valid"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member's protocols do not agree with those of the group"
    INVALID_GROUP_ID = 24, False, "The group id is invalid"
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator is not aware of this member"
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is too short or too long (group.*.session.timeout.ms)"
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing, so a rejoin is needed"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The committing offset data size is not valid"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Topic authorization failed"
    GROUP_AUTHORIZATION_FAILED = 30, False, "Group authorization failed"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Cluster authorization failed"
    INVALID_TIMESTAMP = 32, False, "The timestamp of the message is out of acceptable range"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not support the requested SASL mechanism"
    ILLEGAL_SASL_STATE = 34, False, "Request is not valid given the current SASL state"
    UNSUPPORTED_VERSION = 35, False, "The version of API is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "Topic with this name already exists"
    INVALID_PARTITIONS = 37, False, "Number of partitions is below 1"
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below 1 or above the number of live brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "Replica assignment is invalid"
    INVALID_CONFIG = 40, False, "Configuration is invalid"
    NOT_CONTROLLER = 41, True, "This is not the correct controller for this cluster"
    INVALID_REQUEST = 42, False, "The request is malformed, or meant for another kind of broker"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The broker's message format does not support the request"
    POLICY_VIOLATION = 44, False, "Request parameters do not satisfy the configured policy"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The broker received an out of order sequence number"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The broker received a duplicate sequence number"
    INVALID_PRODUCER_EPOCH = 47, False, "Producer attempted to produce with an old epoch"
    INVALID_TXN_STATE = 48, False, "The producer attempted a transactional operation in an invalid state"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id is not the one assigned to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The timeout is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on the same transaction is under way"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The coordinator that sends the marker is no longer the producer's"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Transactional Id authorization failed"
    SECURITY_DISABLED = 54, False, "Security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, False, "The broker did not attempt to execute this operation"
    KAFKA_STORAGE_ERROR = 56, True, "Disk error when trying to access log file on the disk"
    LOG_DIR_NOT_FOUND = 57, False, "The user-specified log directory is not found in the broker config"
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL Authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "The broker knows nothing of this producer id, perhaps because its records expired"
    REASSIGNMENT_IN_PROGRESS = 60, False, "A partition reassignment is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation Token feature is not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "Delegation Token is not found on server"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "Specified Principal is not valid Owner/Renewer"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Delegation tokens cannot be asked for over this channel"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Delegation Token authorization failed"
    DELEGATION_TOKEN_EXPIRED = 66, False, "Delegation Token is expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "Supplied principalType is not supported"
    NON_EMPTY_GROUP = 68, False, "The group is not empty"
    GROUP_ID_NOT_FOUND = 69, False, "The group id does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The fetch session ID was not found"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session epoch is invalid"
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the name that the request came in on"
    TOPIC_DELETION_DISABLED = 73, False, "Topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch in the request is older than the epoch on the broker"
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch in the request is newer than the epoch on the broker"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client cannot read the partition's compression type"
    STALE_BROKER_EPOCH = 77, False, "Broker epoch has changed"
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id given here"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader was not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has reached its maximum size"
    FENCED_INSTANCE_ID = 82, False, "Another consumer with this group.instance.id has another member id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "Eligible topic partition leaders are not available"
    ELECTION_NOT_NEEDED = 84, True, "Leader election not needed for topic partition"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "No partition reassignment is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "Offsets of a topic cannot be deleted while the group reads it"
    INVALID_RECORD = 87, False, "This record has failed the validation on broker and hence will be rejected"
    UNSTABLE_OFFSET_COMMIT = 88, True, "There are unstable offsets that need to be cleared"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The throttling quota has been exceeded"
    PRODUCER_FENCED = 90, False, "A newer producer with this transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, False, "A request illegally referred to a resource that does not exist"
    DUPLICATE_RESOURCE = 92, False, "A request illegally referred to the same resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "Requested credential would not meet criteria for acceptability"
    INCONSISTENT_VOTER_SET = 94, False, "Sender or recipient is not one of the expected voters"
    INVALID_UPDATE_VERSION = 95, False, "The given update version was invalid"
    FEATURE_UPDATE_FAILED = 96, False, "Unable to update finalized features due to an unexpected server error"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "Request principal deserialization failed during forwarding"
    SNAPSHOT_NOT_FOUND = 98, False, "Requested snapshot was not found"
    POSITION_OUT_OF_RANGE = 99, False, "The position is negative or beyond the snapshot's size"
    UNKNOWN_TOPIC_ID = 100, True, "This server does not host this topic ID"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "This broker ID is already in use"
    BROKER_ID_NOT_REGISTERED = 102, False, "The given broker ID was not registered"
    INCONSISTENT_TOPIC_ID = 103, True, "The log's topic ID did not match the topic ID in the request"
    INCONSISTENT_CLUSTER_ID = 104, False, "The clusterId in the request does not match that found on the server"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The transactionalId could not be found"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session encountered inconsistent topic ID usage"
    INELIGIBLE_REPLICA = 107, False, "The new ISR contains at least one ineligible replica"
    NEW_LEADER_ELECTED = 108, False, "The partition state was updated, and the leader has changed"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The requested offset is moved to tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "The member epoch is fenced by the group coordinator"
    UNRELEASED_INSTANCE_ID = 111, False, "The instance ID is still used by another member in the consumer group"
    UNSUPPORTED_ASSIGNOR = 112, False, "The assignor or its version range is not supported by the consumer group"
    STALE_MEMBER_EPOCH = 113, False, "The member epoch is stale"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request was sent to an endpoint of the wrong type"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This endpoint type is not supported yet"
    UNKNOWN_CONTROLLER_ID = 116, False, "This controller ID is not known"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription id is unknown or outdated"
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, False, "The controller has considered the broker registration to be invalid"
    TRANSACTION_ABORTABLE = 120, False, "The server encountered an error with the transaction"
    INVALID_RECORD_STATE = 121, False, "The record state is invalid"
    SHARE_SESSION_NOT_FOUND = 122, True, "The share session was not found"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session epoch is invalid"
    FENCED_STATE_EPOCH = 124, False, "The state epoch does not match the share group's"
    INVALID_VOTER_KEY = 125, False, "The voter key doesn't match the receiving replica's key"
    DUPLICATE_VOTER = 126, False, "The voter is already part of the set of voters"
    VOTER_NOT_FOUND = 127, False, "The voter is not part of the set of voters"
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, False, "Client metadata is stale"
    STREAMS_INVALID_TOPOLOGY = 130, False, "The supplied topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The supplied topology epoch is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "The supplied topology epoch is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The limit of share sessions has been reached"


MAX_DETAIL = 1000


def shortened(text: str) -> str:
    """Return the text, cut to MAX_DETAIL characters: it may quote very long names."""
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]}..."


class KafkaError(PipelineError):
    """A refusal by a broker (or by us), with Kafka's code. `detail`: more about the reason, shortened."""

    def __init__(self, code: int, detail: str | None = None) -> None:
        self.code = ErrorCode.of(code)
        self.detail = detail = None if detail is None else shortened(detail)
        name = self.code.name if self.code == code else f"error {code}"
        super().__init__(f"{name}: {detail or self.code.message}")

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed later."""
        return self.code.retriable
