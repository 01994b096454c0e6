"""The kinds of memory that the requests of a server take, and how much of each.

Three kinds share `queued.max.request.bytes`: requests with records, of ordinary size and larger ones, and requests
without, which take for what they are decoded to and answered with as well; long answers to short requests do, too.
Each kind has a least that no other takes away. So ordinary requests with records never wait for large ones, nor for
names; and whatever clients mix, all kinds together take no more than the bound.
"""

from dataclasses import dataclass

from pipeline.net.request_memory import Claim, RequestMemory, share
from pipeline.protocol.connection import ServerConnection

MAX_DECODED_BYTES = 96 << 20
"""Memory of requests without records where that of the others has no bound."""
LEAST_RECORDS_BYTES = 12 << 20
LEAST_DECODED_BYTES = 8 << 20
LEAST_PARTS = 8
"""A least takes no more than this part of a small bound."""
ORDINARY_BYTES = 2 << 20
"""A request with records above this takes its memory behind others of that size, and holds up no smaller one."""
DECODED_FACTOR = 3
"""Bytes that a large request without records takes per byte of its size: received, decoded, answered."""
ELEMENTS_BYTES = 64 << 20
"""Bytes at most of the elements of a very large request and of its answer, beside their names."""


@dataclass(frozen=True, slots=True)
class Memories:
    """The kinds of memory of a server."""

    records: RequestMemory
    large_records: RequestMemory
    decoded: RequestMemory

    @property
    def all(self) -> tuple[RequestMemory, ...]:
        """Every kind."""
        return self.records, self.large_records, self.decoded

    @property
    def held(self) -> int:
        """Bytes that all requests hold."""
        return sum(memory.held for memory in self.all)

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return sum(memory.waiting for memory in self.all)

    def overdue(self, now: float) -> list[Claim]:
        """The claims that must be ended. Call every `CHECK_S`."""
        return [claim for memory in self.all for claim in memory.overdue(now)]

    def growth(self, machine: ServerConnection) -> tuple[RequestMemory, int, int]:
        """Return what the request that is received now takes next: the memory, how much, and how much in all."""
        growth, size = machine.growth, machine.large_size
        if not machine.large_has_records:
            return self.decoded, DECODED_FACTOR * growth, DECODED_FACTOR * size + ELEMENTS_BYTES
        return (self.records if size <= ORDINARY_BYTES else self.large_records), growth, size


def memories_of(max_bytes: int | None) -> Memories:
    """Kinds of memory that share so many bytes; with None those of requests with records have no bound."""
    if max_bytes is None:
        return Memories(RequestMemory(None), RequestMemory(None), RequestMemory(MAX_DECODED_BYTES))
    records = min(LEAST_RECORDS_BYTES, max_bytes // LEAST_PARTS)
    decoded = min(LEAST_DECODED_BYTES, max_bytes // LEAST_PARTS)
    memories = Memories(
        RequestMemory(max_bytes - decoded, records),
        RequestMemory(max_bytes - decoded - records),
        RequestMemory(max_bytes - records, decoded),
    )
    share(memories.all)
    return memories
