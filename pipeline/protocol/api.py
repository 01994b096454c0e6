"""Table of api keys: messages, and the versions that our broker serves. A new key takes a file and a line here.

The messages of a key lie in the module of its name, `messages/list_offsets.py` for LIST_OFFSETS, which is imported when
they are first used: a client uses few of them.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from types import MappingProxyType

from pipeline.protocol.schema import Message


class ApiKey(IntEnum):
    """An api key, with its messages and the versions that our broker serves."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TOPIC_PARTITIONS = 75

    @cached_property
    def request(self) -> type[Message]:
        """Class of the requests."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Message]:
        """Class of the responses."""
        return self._message("Response")

    @cached_property
    def min_version(self) -> int:
        """First version served."""
        return self.request.VERSIONS[0]

    @cached_property
    def max_version(self) -> int:
        """Last version served."""
        return self.request.VERSIONS[1]

    @cached_property
    def flexible_since(self) -> int:
        """First flexible version (KIP-482)."""
        return self.request.FLEXIBLE_SINCE

    def serves(self, version: int) -> bool:
        """True if our broker serves this version."""
        first, last = self.request.VERSIONS
        return first <= version <= last

    def _message(self, kind: str) -> type[Message]:
        module = import_module(f"pipeline.protocol.messages.{self.name.lower()}")
        message: type[Message] = getattr(module, self.name.title().replace("_", "") + kind)
        return message


API: Mapping[int, ApiKey] = MappingProxyType({key.value: key for key in ApiKey})
"""Every api key by its number."""
