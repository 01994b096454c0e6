"""Identity of what a task writes, in fields that every batch has: producer id, producer epoch and sequence numbers.

A task of a query has one producer id, each micro batch one epoch of it. The task's rows for a partition are numbered
from 0. Brokers take a batch only if it continues these numbers, so attempts of a task that write the same rows
cannot write one twice; an attempt of an earlier micro batch that is still alive is fenced by the newer epoch. Nothing
is added to the records.

Invariant: the ids are computed, never allocated. Bit 62 keeps them apart from those that brokers give
out, from 0 upwards.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

EPOCHS: Final = 32767
"""Micro batches that share a producer id."""
_COMPUTED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Producer id and epoch of a task in a micro batch."""

    producer_id: int
    producer_epoch: int


def task_identity(query: str, micro_batch: int, task: int) -> TaskIdentity:
    """Return the identity of a task. `query` outlives restarts and is unique."""
    digest = hashlib.blake2b(f"{query} {micro_batch // EPOCHS} {task}".encode(), digest_size=8).digest()
    return TaskIdentity(_COMPUTED | int.from_bytes(digest, "big") >> 2, micro_batch % EPOCHS)
