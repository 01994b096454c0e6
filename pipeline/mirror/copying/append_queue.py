"""Fetched batches that wait for their append, by the broker of the hub that leads the replica. No I/O.

Invariants:
A. The batches of a partition are handed out in order, and no more of it while an append is under way.
B. At most `REQUESTS_OF_A_LEADER` appends are under way at a leader, each of at most `max_bytes` or one piece. So a
   leader that is slow or away holds up its own partitions alone.
C. Partitions with few bytes come first, so that a backlog does not hold up those without one.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.model import BrokerId, TopicPartition

REQUESTS_OF_A_LEADER = 2
MAX_JOINED_BYTES = 1024 * 1024
"""Bound of pieces that are copied into one. Larger pieces are worth a request of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Fetched batches of a partition, and the fetch that they belong to."""

    copy: PartitionCopy
    fetch: int
    """`PartitionCopy.fetch` when they were fetched: after a new location they are void."""
    batches: FetchedBatches

    def follows(self, first: "Piece", offset: int) -> bool:
        """Return True if the piece is of the same fetch as the first one, and begins at this offset."""
        return self.copy is first.copy and self.fetch == first.fetch and self.batches.position == offset

    @property
    def is_next(self) -> bool:
        """True if the replica stands where the batches begin, and was not located again since they were fetched."""
        return self.fetch == self.copy.fetch and self.copy.position == self.batches.position

    @property
    def is_astray(self) -> bool:
        """True if the replica stands elsewhere, so that what is fetched next would not fit either."""
        return self.fetch == self.copy.fetch and self.copy.position not in (None, self.batches.position)

    @property
    def is_due(self) -> bool:
        """True if the batches may be appended."""
        return self.is_next and self.copy.pause is None


@dataclass(frozen=True, slots=True, eq=False)
class PlannedAppend:
    """An append to one leader, None for partitions without one: one piece of each partition."""

    leader: BrokerId | None
    pieces: Sequence[Piece]


class AppendQueue:
    """The pieces of one source that wait, and the appends under way."""

    def __init__(self, leader_of: Callable[[TopicPartition], BrokerId | None]) -> None:
        """`leader_of` returns the present leader of a replica partition."""
        self.size_bytes = 0
        """Bytes that wait or are under way."""
        self._leader_of = leader_of
        self._waiting: dict[TopicPartition, deque[Piece]] = {}
        self._under_way: set[TopicPartition] = set()
        self._astray: list[PartitionCopy] = []
        self._appends: Counter[BrokerId | None] = Counter()

    def add(self, piece: Piece) -> None:
        """Have a piece wait behind the others of its partition."""
        self._waiting.setdefault(piece.copy.source, deque()).append(piece)
        self.size_bytes += len(piece.batches.data)

    def holds(self, partition: TopicPartition) -> bool:
        """Return True if pieces of a partition wait or are under way."""
        return partition in self._waiting or partition in self._under_way

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the pieces of these partitions that wait."""
        for partition in partitions:
            for piece in self._waiting.pop(partition, ()):
                self.size_bytes -= len(piece.batches.data)

    def take_astray(self) -> list[PartitionCopy]:
        """Return the copies whose replicas were found elsewhere than their pieces, once."""
        found, self._astray = self._astray, []
        return found

    def waiting_for(self, leader: BrokerId | None) -> list[PartitionCopy]:
        """Return the copies whose pieces wait for this leader."""
        copies = [pieces[0].copy for pieces in self._waiting.values()]
        return [copy for copy in copies if self._leader_of(copy.assignment.replica) == leader]

    def begin(self, max_bytes: int) -> list[PlannedAppend]:
        """Return the appends to send now, each of `max_bytes` at most. Pieces that are void wait no longer."""
        ready: dict[BrokerId | None, list[tuple[int, TopicPartition]]] = {}
        for partition, pieces in list(self._waiting.items()):
            if partition not in self._under_way:
                self._drop_void(partition)
                if not pieces:
                    continue
                leader = self._leader_of(pieces[0].copy.assignment.replica)
                ready.setdefault(leader, []).append((sum(len(piece.batches.data) for piece in pieces), partition))
        planned = []
        for leader, partitions in ready.items():
            left = [partition for _, partition in sorted(partitions, key=lambda each: each[0])]
            while left and self._appends[leader] < REQUESTS_OF_A_LEADER:
                taken, left = self._take(left, max_bytes)
                self._appends[leader] += 1
                planned.append(PlannedAppend(leader, taken))
        return planned

    def _drop_void(self, partition: TopicPartition) -> None:
        """Forget void pieces. Those of a new location, which may wait behind older ones, stay."""
        pieces = self._waiting[partition]
        while pieces and not pieces[0].is_due:
            void = pieces.popleft()
            self.size_bytes -= len(void.batches.data)
            if void.is_astray and void.copy not in self._astray:
                self._astray.append(void.copy)
        if not pieces:
            del self._waiting[partition]

    def _take(self, partitions: Sequence[TopicPartition], max_bytes: int) -> tuple[list[Piece], list[TopicPartition]]:
        """Return the pieces of one append, and the partitions that found no room."""
        taken: list[Piece] = []
        left: list[TopicPartition] = []
        size = 0
        for partition in partitions:
            pieces = self._waiting[partition]
            if taken and size + len(pieces[0].batches.data) > max_bytes:
                left.append(partition)
                continue
            piece = _joined(pieces)
            size += len(piece.batches.data)
            taken.append(piece)
            self._under_way.add(partition)
            piece.copy.is_appending = True
            if not pieces:
                del self._waiting[partition]
        return taken, left

    def end(self, planned: PlannedAppend) -> None:
        """Take note that an append has ended."""
        self._appends[planned.leader] -= 1
        for piece in planned.pieces:
            self._under_way.discard(piece.copy.source)
            self.size_bytes -= len(piece.batches.data)
            piece.copy.is_appending = False


def _joined(pieces: deque[Piece]) -> Piece:
    """Take the first pieces out, as one if they are small and follow each other."""
    first = pieces.popleft()
    found, size = [first.batches], len(first.batches.data)
    while pieces and pieces[0].follows(first, found[-1].next_offset):
        size += len(pieces[0].batches.data)
        if size > MAX_JOINED_BYTES:
            break
        found.append(pieces.popleft().batches)
    return first if len(found) == 1 else replace(first, batches=_joined_batches(found))


def _joined_batches(found: Sequence[FetchedBatches]) -> FetchedBatches:
    epochs: list[tuple[int, int]] = []
    for batches in found:
        epochs += [entry for entry in batches.leader_epochs if not epochs or entry[0] != epochs[-1][0]]
    return replace(
        found[-1],
        data=memoryview(b"".join(batches.data for batches in found)),
        position=found[0].position,
        leader_epochs=tuple(epochs),
        aborted=tuple(dict.fromkeys(each for batches in found for each in batches.aborted)),
    )
