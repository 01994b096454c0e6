"""Reads the offsets that consumers of before Kafka 0.9 keep in their cluster's ZooKeeper:
`/consumers/<group>/offsets/<topic>/<partition>`, the offset in digits. Nothing is written there.
"""

import trio

from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationUnavailableError, NoNodeError, PipelineError
from pipeline.model import MAX_INT64, TopicPartition

CONSUMERS = "/consumers"
MAX_DIGITS = len(str(MAX_INT64))
MAX_GROUP_BYTES = 32_767
"""Bound of a string in requests to brokers."""

logger = get_logger(__name__)


class ZooKeeperGroups:
    """Groups in one ZooKeeper, while `run` runs. `connect` is `host:port,.../chroot`."""

    def __init__(
        self,
        connect: str,
        *,
        timeout_s: float,
        retry_backoff_s: float,
        security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
    ) -> None:
        self._servers, _, chroot = connect.partition("/")
        # A path and no chroot: a client would create a missing chroot in the live cluster's ZooKeeper.
        self._root = f"/{chroot.strip('/')}{CONSUMERS}" if chroot.strip("/") else CONSUMERS
        self._timeout_ms = int(timeout_s * 1000)
        self._retry_backoff_s = retry_backoff_s
        self._security = security
        self._client: CoordinationClient | None = None
        self._error = "not reached yet"

    async def run(self) -> None:
        """Keep a session until cancelled, and try again after failures."""
        from pipeline.coordination.zookeeper import open_zookeeper  # takes memory that other mirrors do not need

        while True:
            try:
                async with open_zookeeper(
                    self._servers,
                    operation_timeout_ms=self._timeout_ms,
                    connect_timeout_ms=self._timeout_ms,
                    security=self._security,
                ) as client:
                    self._client = client
                    await trio.sleep_forever()
            except PipelineError as error:
                self._error = str(error)
                logger.warning("zookeeper_of_source_failed", servers=self._servers, error=self._error)
            finally:
                self._client = None
            await trio.sleep(self._retry_backoff_s)

    async def list_groups(self) -> tuple[str, ...]:
        """Return the groups that have a znode and a name that brokers take. Raises CoordinationError."""
        return tuple(name for name in await self._children(self._root) if len(name.encode()) <= MAX_GROUP_BYTES)

    async def read_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets of a group. Znodes that hold no offset are left out. Raises CoordinationError."""
        root = f"{self._root}/{group}/offsets"
        paths: dict[str, TopicPartition] = {}
        for topic in await self._children(root):
            for number in await self._children(f"{root}/{topic}"):
                if number.isascii() and number.isdigit() and len(number) < MAX_DIGITS and str(int(number)) == number:
                    paths[f"{root}/{topic}/{number}"] = TopicPartition(topic, int(number))
        found: dict[TopicPartition, int] = {}
        names = list(paths)
        for start in range(0, len(names), MAX_AT_ONCE):
            asked = names[start : start + MAX_AT_ONCE]
            for path, node in zip(asked, await self._reached().get_each(asked), strict=True):
                offset = None if node is None else _offset_of(node.data)
                if offset is not None:
                    found[paths[path]] = offset
        return found

    async def _children(self, path: str) -> tuple[str, ...]:
        try:
            return await self._reached().children(path)
        except NoNodeError:
            return ()

    def _reached(self) -> CoordinationClient:
        if self._client is None:
            raise CoordinationUnavailableError("", f"ZooKeeper at {self._servers}: {self._error}")
        return self._client


def _offset_of(data: bytes) -> int | None:
    digits = data.strip()
    if not digits.isdigit() or len(digits) > MAX_DIGITS or int(digits) > MAX_INT64:
        return None
    return int(digits)
