"""Notes of the replicas that were ever served from a log directory: a replica that was never here lost nothing.

Invariants:

- A. A replica is served, as a leader or as a follower, once its note is on the disk. So a replica without a note has
  acknowledged nothing.
- B. A note goes after the log of its replica was deleted, never with a log that was merely lost.
- C. The notes name the log directories that the broker had when it last left all ISRs that it had to leave. They are
  complete only while all of these are here: a disk that was replaced, or left out, took its notes with it.
- D. Missing or damaged notes are not complete, nor are notes after an older version served replicas.
"""

import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline.log.checkpoint import decode_id, encode_id, read_file, replace_file
from pipeline.log.files import Files
from pipeline.log.unified_log import UnifiedLog

SERVED_REPLICAS = "served-replicas"
MIN_LINES_TO_SHORTEN = 1000

_VERSION = "0"


class ReplicaId(NamedTuple):
    """A replica on this broker. The partition of a recreated topic has another id."""

    topic_id: uuid.UUID
    partition: int


def replicas_of(logs: Iterable[UnifiedLog]) -> Iterable[ReplicaId]:
    """The replicas of these logs, without those that have no topic id yet."""
    return [ReplicaId(log.topic_id, log.topic_partition.partition) for log in logs if log.topic_id is not None]


def _filled(logs: Iterable[UnifiedLog]) -> Iterable[ReplicaId]:
    return replicas_of(log for log in logs if log.log_end_offset)


class ServedReplicas:
    """The notes of one log directory. Every method that writes raises StorageError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / SERVED_REPLICAS
        self._noted: set[ReplicaId] = set()
        self._directories: frozenset[uuid.UUID] | None = None
        """Log directories (invariant C); None without valid notes."""
        self._size = 0
        self._line_count = 0
        content = read_file(files, self._path)
        if content is not None:
            self._read(content)

    def _read(self, content: bytes) -> None:
        whole = content[: content.rfind(b"\n") + 1]  # power may have been lost while a note was written: nobody waited
        try:
            version, directories, *lines = whole.decode("ascii").splitlines()
            noted = {_decode(line) for line in lines}
            known = frozenset(map(decode_id, directories.split()))
        except ValueError:
            return
        if version == _VERSION:
            self._noted, self._directories = noted, known
            self._size, self._line_count = len(whole), len(lines)

    def __contains__(self, replica: ReplicaId) -> bool:
        return replica in self._noted

    def is_complete(self, directories: Collection[uuid.UUID], logs: Iterable[UnifiedLog] = ()) -> bool:
        """True if a broker with these log directories, and these logs in this one, served nothing without a note.

        A log that has records but no note was served by an older version.
        """
        if self._directories is None or not self._directories <= set(directories):
            return False
        return self._noted.issuperset(_filled(logs))

    def rule_out(self, replica: ReplicaId, logs: Iterable[UnifiedLog]) -> bool:
        """Return True if a log directory that holds these logs certainly never served the replica."""
        return replica not in self._noted and self.is_complete(self._directories or (), logs)

    def add(self, replicas: Iterable[ReplicaId]) -> None:
        """Return once the notes of these replicas are on the disk; without a `settle` they do not count."""
        new = dict.fromkeys(replica for replica in replicas if replica not in self._noted)
        if not new:
            return
        if self._directories is not None:
            count = self._line_count + len(new)
            if count > max(2 * (len(self._noted) + len(new)), MIN_LINES_TO_SHORTEN):
                self._write([*self._noted, *new], self._directories)
            else:
                self._append(new)
        self._noted.update(new)

    def discard(self, replicas: Iterable[ReplicaId]) -> None:
        """Discard the lines of replicas whose logs were deleted; they go when the file is next rewritten."""
        self._noted.difference_update(replicas)

    def settle(self, directories: Collection[uuid.UUID], logs: Iterable[UnifiedLog] = ()) -> None:
        """Note these log directories, once the broker has left the ISRs of all replicas that it may have lost."""
        if self._directories != frozenset(directories):
            self._write(self._noted, frozenset(directories))
        self.add(_filled(logs))

    def _append(self, replicas: Collection[ReplicaId]) -> None:
        content = "".join(map(_encode, replicas)).encode()
        file = self._files.open(self._path)
        if file.size() != self._size:  # a note that was not written whole
            file.truncate(self._size)
        file.write_at(content, self._size)
        file.sync()
        self._size += len(content)
        self._line_count += len(replicas)

    def _write(self, replicas: Collection[ReplicaId], directories: frozenset[uuid.UUID]) -> None:
        lines = [f"{_VERSION}\n", " ".join(sorted(map(encode_id, directories))) + "\n"]
        content = "".join([*lines, *map(_encode, sorted(replicas))]).encode()
        replace_file(self._files, self._path, content)
        self._directories, self._size, self._line_count = directories, len(content), len(replicas)


def _encode(replica: ReplicaId) -> str:
    return f"{encode_id(replica.topic_id)} {replica.partition}\n"


def _decode(line: str) -> ReplicaId:
    """Raises ValueError."""
    topic_id, partition = line.split(" ")
    return ReplicaId(decode_id(topic_id), int(partition))
