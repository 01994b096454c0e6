"""Kinds of memory that the requests of a server take, and how much of each.

Three kinds share `queued.max.request.bytes`: ordinary requests with records, larger ones, and requests without records,
which also cover their decoded form and their answer, as do long answers to short requests. Each kind has a minimum that
no other kind can take. So ordinary requests with records never wait for large ones or for names, and all kinds together
take no more than the bound.
"""

from dataclasses import dataclass

from pipeline.net.request_memory import Claim, RequestMemory, share
from pipeline.protocol.connection import ServerConnection

MAX_DECODED_BYTES = 96 << 20
"""Memory of requests without records if the other kinds have no bound."""
LEAST_RECORDS_BYTES = 12 << 20
LEAST_DECODED_BYTES = 8 << 20
LEAST_PARTS = 8
"""Divisor of a small bound: the most that a minimum takes of it."""
ORDINARY_BYTES = 2 << 20
"""Size above which a request with records waits only behind others like it, and holds up no smaller one."""
DECODED_FACTOR = 3
"""Bytes that a large request without records takes per byte of its size: received, decoded, answered."""
ELEMENTS_BYTES = 64 << 20
"""Bound of the elements of a very large request and of its answer, without their names."""


@dataclass(frozen=True, slots=True)
class Memories:
    """Kinds of memory of a server."""

    records: RequestMemory
    large_records: RequestMemory
    decoded: RequestMemory

    @property
    def all(self) -> tuple[RequestMemory, ...]:
        """All kinds."""
        return self.records, self.large_records, self.decoded

    @property
    def held(self) -> int:
        """Bytes that requests hold."""
        return sum(memory.held for memory in self.all)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for memory."""
        return sum(memory.waiting for memory in self.all)

    def overdue(self, now: float) -> list[Claim]:
        """Return the claims whose connections must end. Call every `CHECK_S`."""
        return [claim for memory in self.all for claim in memory.overdue(now)]

    def growth(self, machine: ServerConnection) -> tuple[RequestMemory, int, int]:
        """Return what the request under way takes next: the memory, the bytes, and the bytes in all."""
        growth, size = machine.growth, machine.large_size
        if not machine.large_has_records:
            return self.decoded, DECODED_FACTOR * growth, DECODED_FACTOR * size + ELEMENTS_BYTES
        return (self.records if size <= ORDINARY_BYTES else self.large_records), growth, size


def memories_of(max_bytes: int | None) -> Memories:
    """Return kinds of memory that share `max_bytes`; with None requests with records have no bound."""
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
