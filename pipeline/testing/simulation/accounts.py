"""A compacted topic, and a client that keeps accounts in it: the last value of a key counts.

What must hold of each replica's log, however far it was cleaned:

- The offsets go up. Each record is one that was sent; one that was acknowledged is at its offset, if it is there.
- The last record of a key is the last one that was acknowledged, or one that was not. A key is missing only if that
  record may be a deletion. A replica that was not in sync may have missed a deletion: the others drop it after
  `delete.retention.ms`.
- What was cleaned holds each key once.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from pipeline.client.admin.topics import NewTopic
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.model import Offset, TopicPartition
from pipeline.records.compression import Codec
from pipeline.testing.simulation.client_context import (
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientContext,
)

ACCOUNTS = TopicPartition("accounts", 0)
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
KEYS = tuple(f"account-{number}".encode() for number in range(5))
DELETIONS = 0.15
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
NONE_YET = Offset(-1)
NO_OFFSET = Offset(0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the topic."""

    offset: Offset
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Account:
    """Records of one key that were sent and acknowledged."""

    sent: dict[bytes | None, None] = field(default_factory=dict)
    last: Entry | None = None
    """The last record that was acknowledged."""
    unclear: dict[int, bytes | None] = field(default_factory=dict)
    """Values that were sent and not acknowledged, by record number: they may be in the log, now or later."""


@dataclass(eq=False)
class Accounts:
    """The client, and the model."""

    context: ClientContext
    accounts: dict[bytes, Account] = field(default_factory=lambda: {key: Account() for key in KEYS})
    acknowledged: dict[Offset, Entry] = field(default_factory=dict)

    def topic(self, replication: int) -> NewTopic:
        """The topic that is to be made."""
        return NewTopic(name=ACCOUNTS.topic, partitions=1, replication_factor=replication, configs=SETTINGS)

    async def keep(self, name: str) -> None:
        """Write values and deletions, one at a time, so that each key has an order."""
        rng = self.context.rng(name)
        config = ProducerConfig(
            linger_ms=0,
            compression=rng.choice(CODECS),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
        )
        await self.context.keep_producing(name, rng, config, 10, partial(self._write, rng))

    async def _write(self, rng: random.Random, producer: Producer, number: int) -> None:
        key = rng.choice(KEYS)
        value = None if rng.random() < DELETIONS else f"{number}".encode()
        account = self.accounts[key]
        account.sent[value], account.unclear[number] = None, value
        callback = partial(self._delivered, key, value, number)
        await producer.send(ACCOUNTS.topic, value, key=key, partition=ACCOUNTS.partition, callback=callback)

    def _delivered(
        self, key: bytes, value: bytes | None, number: int, told: RecordMetadata | None, _error: Exception | None
    ) -> None:
        if told is not None and told.offset >= 0:
            self.acknowledge(Entry(Offset(told.offset), key, value), number)

    def acknowledge(self, entry: Entry, number: int) -> None:
        """The record of this number was acknowledged."""
        account = self.accounts[entry.key]
        del account.unclear[number]
        self.acknowledged[entry.offset] = entry
        if account.last is None or entry.offset > account.last.offset:
            account.last = entry

    def check(
        self, replica: str, log: Sequence[Entry], clean_offset: Offset, joined: Offset = NO_OFFSET
    ) -> Iterator[str]:
        """Yield the faults of a replica's log. `joined`: where it ended when it came into the ISR last."""
        name, last, newest = f"{ACCOUNTS} on {replica}", NONE_YET, dict[bytes, Entry]()
        for entry in log:
            if entry.offset <= last:
                yield f"{name}: {entry.offset} follows {last}"
            last = entry.offset
            if entry.key not in self.accounts or entry.value not in self.accounts[entry.key].sent:
                yield f"{name}: {entry}, which nobody sent"
            if self.acknowledged.get(entry.offset, entry) != entry:
                yield f"{name}: {entry}, where {self.acknowledged[entry.offset]} was acknowledged"
            if entry.key in newest and entry.offset < clean_offset:
                yield f"{name}: cleaned up to {clean_offset}, and holds {newest[entry.key]} beside {entry}"
            newest[entry.key] = entry
        for key, account in self.accounts.items():
            yield from self._check_last(name, account, newest.get(key), joined)

    def _check_last(self, name: str, account: Account, found: Entry | None, joined: Offset) -> Iterator[str]:
        last, unclear = account.last, account.unclear.values()
        if last is None:
            return
        if found is None:
            if last.value is not None and None not in unclear:
                yield f"{name}: {last} is lost"
        elif found.offset < last.offset:
            if last.value is not None or last.offset >= joined:
                yield f"{name}: {found} is the last one of its key, though {last} was acknowledged"
        elif found.offset > last.offset and found.value not in unclear:
            yield f"{name}: {found} follows {last}, and was acknowledged elsewhere"
