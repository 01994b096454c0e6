"""Producer ids that are unique in a cluster: each broker claims blocks of them in ZooKeeper (KIP-98).

The claim is a conditional set, so two brokers never hold the same block; the rest of a block is lost at a stop.

A block also begins above the clock's time: if ZooKeeper's data go back (decision 0034), a block must not be claimed
twice, or records of a second producer with the same id would look like repetitions of the first one's.
"""

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.update import update
from pipeline.coordination.znodes import ProducerIdBlock
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, NodeContendedError
from pipeline.model import BrokerId, Clock

BLOCK_SIZE = 1000
IDS_PER_MS = 1000
"""More than a cluster assigns, so that the claimed blocks lie below the clock's time."""

logger = get_logger(__name__)


def next_block(latest: NodeValue | None, broker: BrokerId, now_ms: int) -> ProducerIdBlock:
    """Return the block after the last claimed block, and after this time; an unreadable znode counts as missing."""
    first = max(0 if latest is None else _end_of(latest), now_ms * IDS_PER_MS)
    return ProducerIdBlock(broker=broker, first=first, last=first + BLOCK_SIZE - 1)


def _end_of(latest: NodeValue) -> int:
    """Return the first id after the last claimed block; 0 if the znode cannot be read."""
    try:
        return ProducerIdBlock.decode(latest.data).last + 1
    except CoordinationError as error:
        logger.warning("producer_id_block_unreadable", error=str(error))
        return 0


@dataclass(slots=True)
class ProducerIds:
    """The ids that this broker may assign."""

    zookeeper: CoordinationClient
    broker: BrokerId
    clock: Clock
    _next: int = 0
    _last: int = -1
    _lock: trio.Lock = field(default_factory=trio.Lock)

    def next_or_none(self) -> int | None:
        """Return an id; None if the block is used up."""
        if self._next > self._last:
            return None
        self._next += 1
        return self._next - 1

    async def next(self) -> int:
        """Return an id, from a new block if necessary. Raises CoordinationError."""
        async with self._lock:
            while (producer_id := self.next_or_none()) is None:
                await self._claim_block()
            return producer_id

    async def _claim_block(self) -> None:
        block: ProducerIdBlock | None = None

        def decide(latest: NodeValue | None) -> bytes:
            nonlocal block
            block = next_block(latest, self.broker, self.clock())
            return block.encode()

        with suppress(NodeContendedError):  # `next` tries again
            await update(self.zookeeper, ProducerIdBlock.PATH, decide)
            assert block is not None
            self._next, self._last = block.first, block.last
