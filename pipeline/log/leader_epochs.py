"""The offsets at which leader epochs begin in a log (KIP-101), in Kafka's checkpoint format. Pure.

Invariants:

- Epochs and their start offsets both rise from entry to entry.
- An entry at or behind the log end offset has no records yet: the next entry replaces it, even one of an older epoch.
  (A leader that wrote nothing may receive records of older epochs from the next leader.)
- The checkpoint has all epochs of records before the recovery point; later ones are found in the batches.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset
from pipeline.records.batch import BatchHeader

LEADER_EPOCHS = "leader-epoch-checkpoint"
NO_OFFSET = Offset(-1)


class EpochStart(NamedTuple):
    """An epoch and the offset of its first record."""

    epoch: LeaderEpoch
    start_offset: Offset


class LeaderEpochs:
    """The epochs of one log. `is_changed`: the checkpoint lacks the last epoch; `written`: epoch of the last append."""

    __slots__ = ("_entries", "is_changed", "written")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries = tuple(entries)
        self.is_changed = False
        self.written: int | None = None

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All epochs, rising."""
        return self._entries

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH

    def begin(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Note that the log is in this epoch from here on; an epoch that is not newer than the last is skipped."""
        if self._entries and self._entries[-1].start_offset < start_offset and epoch <= self.latest:
            return
        kept = tuple(entry for entry in self._entries if entry.start_offset < start_offset)
        is_newer = not kept or epoch > kept[-1].epoch
        self._entries = (*kept, EpochStart(epoch, start_offset)) if is_newer else kept
        self.written = None

    def note(self, headers: Iterable[BatchHeader]) -> None:
        """Note the epochs of batches that lie in the log."""
        for header in headers:
            self.begin(LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset))

    def note_appended(self, headers: Sequence[BatchHeader]) -> None:
        """Note the epochs of batches that were just appended."""
        self.note(headers)
        self.is_changed = True
        self.written = headers[-1].partition_leader_epoch

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Drop the epochs from the new log end offset on."""
        self._entries = tuple(entry for entry in self._entries if entry.start_offset < end_offset)

    def truncate_from_start(self, log_start_offset: Offset) -> None:
        """Drop the epochs before the new log start offset; the epoch of the first record starts there."""
        before = [entry for entry in self._entries if entry.start_offset <= log_start_offset]
        if before and before[-1].start_offset < log_start_offset:
            later = self._entries[len(before) :]
            self._entries = (EpochStart(before[-1].epoch, log_start_offset), *later)
        elif len(before) > 1:
            self._entries = self._entries[len(before) - 1 :]

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> EpochStart:
        """The newest epoch that is not above this one, and where it ends; (-1, -1) for one that is not known."""
        if not 0 <= epoch <= self.latest:
            return EpochStart(NO_LEADER_EPOCH, NO_OFFSET)
        found = epoch
        for entry in self._entries:
            if entry.epoch > epoch:
                return EpochStart(found, entry.start_offset)
            found = entry.epoch
        return EpochStart(found, log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which the record at this offset was written, -1 if it is not known."""
        number = bisect_right(self._entries, offset, key=attrgetter("start_offset"))
        return self._entries[number - 1].epoch if number else NO_LEADER_EPOCH

    def encode(self) -> bytes:
        """Encode as Kafka's `leader-epoch-checkpoint`, version 0: a line with epoch and start offset each."""
        entries = self._entries
        return "".join(
            f"{line}\n" for line in ("0", len(entries), *(f"{epoch} {start}" for epoch, start in entries))
        ).encode()

    @classmethod
    def decode(cls, content: bytes) -> "LeaderEpochs":
        """Decode the output of `encode`. Raises ValueError."""
        version, count, *lines = content.decode().splitlines()
        if version != "0" or int(count) != len(lines):
            raise ValueError("not a leader epoch checkpoint of version 0, or cut off")
        epochs = cls()
        for line in lines:
            epoch, start_offset = map(int, line.split(" "))
            epochs.begin(LeaderEpoch(epoch), Offset(start_offset))
        return epochs
