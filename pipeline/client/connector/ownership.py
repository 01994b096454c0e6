"""Ownership of partitions, and the offsets that owners store: claims, commits and releases as ZooKeeper's transactions.

Invariants:

A. One transaction claims a partition: it creates the ephemeral owner znode, and writes the offset znode, whose version
   rises by that. It requires the registration of this consumer.
B. An owner stores an offset only over the version that its claim or its last commit has left, and only while the owner
   znode has the version OWNER_VERSION. So a former owner that was paused or cut off overwrites nothing: the version has
   risen since. An owner znode of Kafka's consumers has version 0.
C. One transaction releases a partition: it stores the offset, if that is wanted, and removes the owner znode. It is
   repeated until its outcome is known, or the session has ended. An owner znode is removed only if the offset znode
   has the version that its owner has left there, or that was read before its owner: a request that is performed after
   the end of the session removes no heir.
D. An owner znode of this session that is no claim is removed by `clean_up`: one that a cancelled or unanswered request
   left, or that was dropped.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import trio

from pipeline.client.connector.connector_znodes import (
    ConsumerGroupPaths,
    GroupStream,
    decode_offset,
    encode_offset,
)
from pipeline.client.consumer.consumption import ConsumptionObserver, NoConsumptionObserver
from pipeline.coordination.interface import (
    ANY_VERSION,
    MAX_AT_ONCE,
    CheckNode,
    CoordinationClient,
    CreateNode,
    DeleteNode,
    NodeValue,
    Operation,
    SessionId,
    SetNode,
)
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    PipelineError,
)
from pipeline.model import TopicPartition

OWNER_VERSION = 1
AT_ONCE = 100
"""Partitions of one transaction."""
COMMIT_ATTEMPTS = 5
RETRY_S = 0.1

logger = get_logger(__name__)


class OwnershipLostError(PipelineError):
    """Offsets were not stored: other members own the partitions, or will. Their records are handed out there."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(map(str, sorted(self.partitions)[:10]))
        super().__init__(
            f"offsets of {len(self.partitions)} partitions were not stored, which are no longer owned: {named}"
        )


class Claimant(NamedTuple):
    """The stream that is to have a partition, and the topic's id."""

    stream: GroupStream
    topic_id: UUID


@dataclass(eq=False, slots=True)
class OwnedPartition:
    """A partition that this session owns. `offset` is stored in the offset znode, of `version` (None: removed)."""

    topic_partition: TopicPartition
    claimant: Claimant
    session: SessionId
    offset: int
    version: int | None
    consumed: int | None = None
    """The next offset to consume, once the stream has returned the partition; None before that."""


class Claimed(NamedTuple):
    """Result of an attempt to claim partitions."""

    made: Sequence[OwnedPartition] = ()
    taken: Sequence[TopicPartition] = ()
    """Partitions that others own."""
    unstarted: Sequence[TopicPartition] = ()
    """Partitions without stored offset, whose start could not be found now."""


FindStarts = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
"""Returns the offsets at which partitions without stored offset begin, as far as they can be found now."""


class Ownership:
    """The claims of one consumer. `session` is the session of its registration, None without one."""

    def __init__(
        self,
        client: CoordinationClient,
        paths: ConsumerGroupPaths,
        consumer: str,
        observer: ConsumptionObserver | None = None,
    ) -> None:
        self._observer = observer or NoConsumptionObserver()
        self.claims: dict[TopicPartition, OwnedPartition] = {}
        self.session: SessionId | None = None
        self._client = client
        self._paths = paths
        self._consumer = consumer.encode()
        self._registration = CheckNode(path=paths.id(consumer), version=ANY_VERSION)
        self._uncertain: set[TopicPartition] = set()
        """Partitions whose owner znode may be of this client although they are not claimed."""
        self._writing = trio.Lock()

    def drop(self, claims: Collection[OwnedPartition]) -> None:
        """Forget claims that are lost, or whose session may have ended."""
        for claim in claims:
            if self.claims.get(claim.topic_partition) is claim:
                del self.claims[claim.topic_partition]
                self._uncertain.add(claim.topic_partition)
                self._observer.given_up((claim.topic_partition,))

    async def clean_up(self) -> None:
        """Remove the owner znodes of this session that are no claims (invariant D). Raises CoordinationError."""
        for topic_partition in sorted(self._uncertain - self.claims.keys()):
            path = self._paths.owner(topic_partition)
            stored = await self._client.get_or_none(self._paths.offset(topic_partition))  # first: invariant C
            found, value = await self._client.exists(path), await self._client.get_or_none(path)
            is_own = value is not None and value.data.rpartition(b"-")[0] == self._consumer
            if is_own and found is not None and found.ephemeral_owner == self._client.session_id:
                fence = self._unchanged(topic_partition, None if stored is None else stored.version)
                try:
                    await self._client.transaction([DeleteNode(path=path, version=found.version), *fence])
                except (NoNodeError, BadVersionError, NodeExistsError):
                    continue  # the session has ended meanwhile, or the offset was changed: the next call looks again
            self._uncertain.discard(topic_partition)

    async def claim(self, wanted: Mapping[TopicPartition, Claimant], find_starts: FindStarts) -> Claimed:
        """OwnedPartition partitions, as far as they are free. Raises CoordinationError."""
        session, ordered = self.session, sorted(wanted)
        if session is None or not wanted:
            return Claimed(taken=ordered)
        await self._make_parents({topic_partition.topic for topic_partition in wanted})
        owners = await self._read(map(self._paths.owner, ordered))
        free = [found for found, owner in zip(ordered, owners, strict=True) if owner is None]
        stored = dict(zip(free, await self._read(map(self._paths.offset, free)), strict=True))
        offsets = {found: offset for found in free if (offset := self._offset_of(found, stored[found])) is not None}
        if missing := [found for found in free if found not in offsets]:
            offsets |= await find_starts(missing)
        claims = [
            OwnedPartition(
                found,
                wanted[found],
                session,
                offsets[found],
                None if (value := stored[found]) is None else value.version,
            )
            for found in free
            if found in offsets
        ]
        self._uncertain |= offsets.keys()
        refused = await self._write_each(claims, self._claiming, [self._registration])
        made = [claim for claim in claims if claim not in refused]
        if self.session != session or self._client.session_id != session:
            return Claimed(taken=ordered)  # they may be of another session; `clean_up` removes them
        for claim in made:
            claim.version = 0 if claim.version is None else claim.version + 1
            self.claims[claim.topic_partition] = claim
        self._uncertain -= {claim.topic_partition for claim in claims}
        unstarted = [found for found in free if found not in offsets]
        return Claimed(made, sorted(wanted.keys() - self.claims.keys() - set(unstarted)), unstarted)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> list[OwnedPartition]:
        """Store offsets of claimed partitions. Return the claims that turned out to be lost, without their offsets.

        Raises CoordinationError: the offsets may be stored or not.
        """
        async with self._writing:
            pending = [
                claim
                for topic_partition in sorted(offsets)
                if (claim := self.claims.get(topic_partition)) is not None
                and (claim.offset != offsets[topic_partition] or claim.version is None)
            ]

            def storing(claim: OwnedPartition) -> Sequence[Operation]:
                return [
                    CheckNode(path=self._paths.owner(claim.topic_partition), version=OWNER_VERSION),
                    self._storing(claim, offsets[claim.topic_partition]),
                ]

            lost: list[OwnedPartition] = []
            for _ in range(COMMIT_ATTEMPTS):
                refused = await self._write_each(pending, storing)
                for claim in pending:
                    if claim not in refused:
                        self._stored(claim, offsets[claim.topic_partition])
                        self._observer.committed({claim.topic_partition: claim.offset})
                kept = [claim for claim in refused if await self._is_kept(claim)]
                lost += [claim for claim in refused if claim not in kept]
                if not (pending := kept):
                    return lost
            raise CoordinationError(self._paths.offset(pending[0].topic_partition), "is changed by others all the time")

    async def release(self, offsets: Mapping[OwnedPartition, int | None], *, removes_offsets: bool = False) -> None:
        """Give up claims, and store their offsets (None: leave what is stored). Returns once none is owned any more.

        `removes_offsets`: the topics are deleted, and their offsets with them.
        """

        def releasing(claim: OwnedPartition) -> Sequence[Operation]:
            owner, offset = self._paths.owner(claim.topic_partition), offsets[claim]
            operations: list[Operation] = [DeleteNode(path=owner, version=OWNER_VERSION)]
            if removes_offsets and claim.version is not None:
                operations.append(DeleteNode(path=self._paths.offset(claim.topic_partition), version=claim.version))
            elif offset is not None and not removes_offsets:
                operations.append(self._storing(claim, offset))
            else:
                operations += self._unchanged(claim.topic_partition, claim.version)
            return operations

        pending = list(offsets)
        while pending := [claim for claim in pending if self.claims.get(claim.topic_partition) is claim]:
            try:
                async with self._writing:
                    refused = await self._write_each(pending, releasing)
                    for claim in pending:
                        if claim not in refused:
                            if (offset := offsets[claim]) is not None and not removes_offsets:
                                self._observer.committed({claim.topic_partition: offset})
                            if self.claims.get(claim.topic_partition) is claim:  # else dropped meanwhile
                                del self.claims[claim.topic_partition]
                                self._observer.given_up((claim.topic_partition,))
                    self.drop([claim for claim in refused if not await self._is_kept(claim)])
                if refused:
                    await trio.sleep(RETRY_S)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("connector_release_repeated", partitions=len(pending), reason=error.reason)
                await trio.sleep(RETRY_S)

    def _claiming(self, claim: OwnedPartition) -> Sequence[Operation]:
        owner, data = self._paths.owner(claim.topic_partition), str(claim.claimant.stream).encode()
        return [
            CreateNode(path=owner, data=data, ephemeral=True),
            SetNode(path=owner, data=data, version=OWNER_VERSION - 1),
            self._storing(claim, claim.offset),
        ]

    def _storing(self, claim: OwnedPartition, offset: int) -> Operation:
        path, data = self._paths.offset(claim.topic_partition), encode_offset(offset)
        if claim.version is None:
            return CreateNode(path=path, data=data)
        return SetNode(path=path, data=data, version=claim.version)

    def _unchanged(self, topic_partition: TopicPartition, version: int | None) -> Sequence[Operation]:
        """Return conditions: the offset znode has this version still (None: it does not exist)."""
        path = self._paths.offset(topic_partition)
        if version is None:
            return [CreateNode(path=path), DeleteNode(path=path)]
        return [CheckNode(path=path, version=version)]

    @staticmethod
    def _stored(claim: OwnedPartition, offset: int) -> None:
        claim.offset, claim.version = offset, 0 if claim.version is None else claim.version + 1

    async def _write_each(
        self,
        claims: Sequence[OwnedPartition],
        operations: Callable[[OwnedPartition], Sequence[Operation]],
        conditions: Sequence[CheckNode] = (),
    ) -> list[OwnedPartition]:
        """Perform the operations of each claim, or none of them. Return the claims whose operations were refused.

        Raises CoordinationError, among others if one of `conditions` does not hold.
        """
        refused: list[OwnedPartition] = []
        for start in range(0, len(claims), AT_ONCE):
            pending = {claim: operations(claim) for claim in claims[start : start + AT_ONCE]}
            while pending:
                try:
                    await self._client.transaction([*conditions, *(each for own in pending.values() for each in own)])
                except (BadVersionError, NoNodeError, NodeExistsError) as error:
                    faulty = [claim for claim, own in pending.items() if error.path in {each.path for each in own}]
                    if not faulty:
                        raise
                    refused += faulty
                    for claim in faulty:
                        del pending[claim]
                else:
                    break
        return refused

    async def _is_kept(self, claim: OwnedPartition) -> bool:
        """Return True if this session owns the partition still; then take over the version of its offset.

        The offset is read first: if another member claims the partition later, that version is too old (invariant B).
        """
        stored = await self._client.get_or_none(self._paths.offset(claim.topic_partition))
        owner = await self._client.exists(self._paths.owner(claim.topic_partition))
        claim.version = None if stored is None else stored.version
        if stored is None:
            await self._make_parents({claim.topic_partition.topic})
        return owner is not None and (owner.ephemeral_owner, owner.version) == (claim.session, OWNER_VERSION)

    async def _make_parents(self, topics: Collection[str]) -> None:
        paths = [path for topic in sorted(topics) for path in (self._paths.owners(topic), self._paths.offsets(topic))]
        for path, found in zip(paths, await self._read(paths), strict=True):
            if found is None:
                try:
                    await self._client.create(path)
                except NodeExistsError:
                    await trio.lowlevel.checkpoint()

    async def _read(self, paths: Iterable[str]) -> list[NodeValue | None]:
        return [value for part in _parts(list(paths)) for value in await self._client.get_each(part)]

    def _offset_of(self, topic_partition: TopicPartition, stored: NodeValue | None) -> int | None:
        if stored is None:
            return None
        try:
            return decode_offset(self._paths.offset(topic_partition), stored.data)
        except CoordinationError as error:
            logger.error("connector_offset_unreadable", error=str(error))
            return None


def _parts(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[start : start + MAX_AT_ONCE] for start in range(0, len(paths), MAX_AT_ONCE))
