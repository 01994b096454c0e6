"""The log directories of one broker: each on a disk of its own, so that a disk that fails takes only its partitions.

Invariants:

- A partition stays in one directory for life. A new one goes to the directory with the fewest partitions; one that
  existed before is not recreated while a directory that may hold it is offline.
- A partition found in two directories is served from neither: either one may be the right one.
- A directory that cannot be opened is offline from the start. Without any the start fails.
"""

import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, PipelineError, StorageError
from pipeline.log.checkpoint import META_PROPERTIES, decode_properties, read_directory_id, read_file
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.displacement import find_logs, make_way, may_be_displaced
from pipeline.log.directories.logs_set_aside import HeldLog, LogName
from pipeline.log.directories.served_replicas import ReplicaId
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import Files
from pipeline.log.loader import NewLog
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition

logger = get_logger(__name__)


class LogDirectories:
    """The log directories of a broker, opened by `LogDirectories.open`."""

    def __init__(self, opened: Sequence[LogDirectory], unopened: Mapping[Path, StorageError]) -> None:
        self._opened = opened
        self._by_path = {directory.path: directory for directory in opened}
        self._unopened = unopened
        self._doubled = _doubled(opened)
        here = self.ids
        self._knows_served = not unopened and all(
            directory.served.is_complete(here, directory.logs.values()) for directory in opened
        )

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        files: Files,
        config: LogConfig,
        *,
        broker_id: BrokerId,
        cluster_id: str,
        rng: random.Random,
        now_ms: int,
    ) -> "LogDirectories":
        """Take all directories and open all partitions in them.

        Raises ConfigurationError if another process or another broker has one of them, StorageError if none is left.
        """
        opened: list[LogDirectory] = []
        unopened: dict[Path, StorageError] = {}
        try:
            for path in paths:
                try:
                    opened.append(
                        open_log_directory(
                            path, files, config, broker_id=broker_id, cluster_id=cluster_id, rng=rng, now_ms=now_ms
                        )
                    )
                except StorageError as error:
                    logger.error("log_dir_offline", log_dir=str(path), error=str(error))
                    unopened[path] = error
            if not opened:
                raise next(iter(unopened.values()))
        except BaseException:
            for directory in opened:
                directory.release()
            raise
        return cls(opened, unopened)

    @property
    def ids(self) -> Sequence[uuid.UUID]:
        """The ids of the directories that this process holds."""
        return [directory.id for directory in self._opened]

    @property
    def logs(self) -> Mapping[TopicPartition, UnifiedLog]:
        """All open logs at this moment."""
        return {name: log for directory in self._opened for name, log in directory.logs.items()}

    @property
    def opened(self) -> Sequence[LogDirectory]:
        """Directories that could be opened, in the order of the setting; they may have a `failure`."""
        return self._opened

    @property
    def offline(self) -> Mapping[Path, StorageError]:
        """Directories whose disk failed, with the error."""
        failed = {directory.path: directory.failure for directory in self._opened if directory.failure is not None}
        return {**self._unopened, **failed}

    @property
    def _online(self) -> Sequence[LogDirectory]:
        return [directory for directory in self._opened if directory.failure is None]

    @property
    def is_any_online(self) -> bool:
        """True if a directory is online."""
        return bool(self._online)

    def get(self, topic_partition: TopicPartition) -> UnifiedLog | None:
        """The log of a partition, None if there is none. Raises PipelineError if it cannot be opened."""
        error = self._doubled.get(topic_partition)
        if error is not None:
            raise error
        for directory in self._opened:
            if topic_partition in directory.failed:
                raise directory.failed[topic_partition]
            log = directory.logs.get(topic_partition)
            if log is not None:
                return log
        return None

    def create(
        self,
        topic_partition: TopicPartition,
        *,
        is_new: bool,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        config: LogConfig | None = None,
    ) -> UnifiedLog:
        """Create one log, as `create_all` does. Raises ValueError, and StorageError if the log could not be created."""
        wanted = NewLog(topic_partition=topic_partition, topic_id=topic_id, config=config, is_new=is_new)
        made = self.create_all([wanted], now_ms)[topic_partition]
        if isinstance(made, StorageError):
            raise made
        return made

    def create_all(self, new: Sequence[NewLog], now_ms: int) -> dict[TopicPartition, UnifiedLog | StorageError]:
        """Create empty logs; returns an error for a log that could not be created. Raises ValueError if one exists."""
        made: dict[TopicPartition, UnifiedLog | StorageError] = {}
        shares: dict[LogDirectory, list[NewLog]] = {}
        for wanted, place in zip(new, self.place(new).values(), strict=True):
            if isinstance(place, StorageError):
                made[wanted.topic_partition] = place
            else:
                shares.setdefault(place, []).append(wanted)
        for directory, share in shares.items():
            made.update(create_each(directory, share, now_ms))
        return made

    def place(
        self, new: Sequence[NewLog], avoided: Set[Path] = frozenset()
    ) -> dict[TopicPartition, LogDirectory | StorageError]:
        """Choose the log dir with the fewest logs for each new log, one after the other, without access to the disk.

        Log dirs that are `avoided` get none as long as there is another.
        """
        placed: dict[TopicPartition, LogDirectory | StorageError] = {}
        usable = [directory for directory in self._online if directory.path not in avoided] or self._online
        counts = {directory: len(directory.logs) + len(directory.failed) for directory in usable}
        offline = next(iter(self.offline.items()), None)
        for wanted in new:
            name = wanted.topic_partition
            if offline is not None and not wanted.is_new:
                path, error = offline
                placed[name] = StorageError(str(path), f"is offline and may hold {name}: {error.reason}")
            elif not counts:
                placed[name] = StorageError(str(self._opened[0].path), "all log dirs are offline")
            else:
                fewest = min(counts, key=lambda directory: counts[directory])
                counts[fewest] += 1
                placed[name] = fewest
        return placed

    def may_have_served(self, replica: ReplicaId) -> bool:
        """False if no process of this broker served the replica, or if `settle_tails` took care of it."""
        return not self._knows_served or any(replica in directory.served for directory in self._opened)

    def begin_settling(self) -> Sequence[LogDirectory]:
        """Trust the notes of served replicas from now on. Returns the log dirs in which to call `settle_tails`."""
        self._knows_served = True
        return self._online

    def held(self) -> list[HeldLog]:
        """All logs in all directories whose disk works, whatever their state. To be called in a thread."""
        return [held for directory in self._online for held in find_logs(directory)]

    def is_set_aside_whole(self, name: LogName) -> bool:
        """Return True if the log is set aside and has all its acknowledged records. Raises StorageError."""
        return any(directory.set_aside.is_whole(name) for directory in self._online)

    def may_displace(self, name: LogName) -> Sequence[LogDirectory]:
        """Return the log dirs in which to call `is_displaced`, in a thread, and `made_way` after each `make_way`."""
        return [directory for directory in self._online if may_be_displaced(directory, name)]

    def made_way(self, topic_partition: TopicPartition) -> None:
        """Check again if a partition is in two log dirs."""
        others = {name: error for name, error in self._doubled.items() if name != topic_partition}
        self._doubled = {**others, **_doubled(self._opened, {topic_partition})}

    def make_way(self, topic_partition: TopicPartition, topic_id: uuid.UUID, now_ms: int) -> None:
        """Call `make_way` in each log dir. Raises the first StorageError."""
        _for_each(self._online, lambda directory: make_way(directory, topic_partition, topic_id, now_ms))
        self.made_way(topic_partition)

    def delete_all(self, names: Collection[LogName], now_ms: int) -> None:
        """Delete these logs in each log dir (`LogDirectory.delete_all`). Raises the first StorageError."""
        _for_each(self._opened, lambda directory: self.delete_from(directory, names, now_ms))

    def delete_from(self, directory: LogDirectory, names: Collection[LogName], now_ms: int) -> None:
        """Delete these logs in one log dir (`LogDirectory.delete_all`). Raises StorageError."""
        try:
            directory.delete_all(names, now_ms)
        finally:
            if any(name.topic_partition in self._doubled for name in names):
                self._doubled = _doubled(self._opened)

    def _owner(self, log: UnifiedLog) -> LogDirectory:
        return self._by_path[log.directory.parent]

    def delete_segments(self, expired: Mapping[UnifiedLog, Sequence[Segment]], now_ms: int) -> None:
        """Call `LogDirectory.delete_segments` for the directory of each log. Raises the first StorageError."""
        shares: dict[LogDirectory, dict[UnifiedLog, Sequence[Segment]]] = {}
        for log, segments in expired.items():
            shares.setdefault(self._owner(log), {})[log] = segments
        _for_each(list(shares), lambda directory: directory.delete_segments(shares[directory], now_ms))

    def replace_segments(
        self, log: UnifiedLog, base_offset: int, end_offset: int, now_ms: int, truncations: int
    ) -> bool:
        """Call `LogDirectory.replace_segments` for the directory of the log."""
        return self._owner(log).replace_segments(log, base_offset, end_offset, now_ms, truncations)

    def checkpoint_clean_offset(self, log: UnifiedLog) -> None:
        """Checkpoint the clean offsets of the directory of this log. Raises StorageError."""
        self._owner(log).checkpoint_clean_offsets()

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Checkpoint the high watermarks of these logs. Raises the first StorageError."""
        _for_each(self._online, lambda directory: directory.checkpoint_high_watermarks(offsets))

    def high_watermark(self, topic_partition: TopicPartition) -> Offset:
        """The last checkpointed high watermark, within the offsets of the log; 0 if there is no log."""
        for directory in self._opened:
            log = directory.logs.get(topic_partition)
            if log is not None:
                return directory.high_watermark(log)
        return Offset(0)

    def checkpoint_log_start_offset(self, log: UnifiedLog) -> None:
        """Return once the log start offset would survive a crash. Raises StorageError."""
        self._owner(log).checkpoint_log_start_offsets()

    def flush_due(self, now_ms: int) -> None:
        """Call `LogDirectory.flush_due` of each directory. Raises the first StorageError."""
        _for_each(self._opened, lambda directory: directory.flush_due(now_ms))

    def close(self) -> None:
        """Close every directory; each without a failed log is marked as clean. Raises the first StorageError."""
        _for_each(self._opened, lambda directory: directory.close())


def find_directory_ids(paths: Sequence[Path], files: Files) -> Sequence[uuid.UUID]:
    """The ids of directories, held by any process; directories that cannot be read are skipped."""
    found = []
    for path in paths:
        with suppress(StorageError):
            found.append(read_directory_id(files, path))
    return [directory_id for directory_id in found if directory_id is not None]


def find_cluster_id_of(paths: Sequence[Path], files: Files) -> str | None:
    """The cluster that directories belong to; None if they belong to none yet, or cannot be read."""
    for path in paths:
        with suppress(StorageError, ValueError):
            content = read_file(files, path / META_PROPERTIES)
            if content is not None:
                return decode_properties(content).get("cluster.id")
    return None


def create_each(
    directory: LogDirectory, new: Sequence[NewLog], now_ms: int
) -> dict[TopicPartition, UnifiedLog | StorageError]:
    """Create empty logs in a log dir, as many as there is room for; returns an error for each that was not created.

    Raises ValueError if one exists.
    """
    made: dict[TopicPartition, UnifiedLog | StorageError] = {}
    for wanted in new:
        refusal = _refusal(directory, wanted.topic_partition)
        if refusal is not None:
            made[wanted.topic_partition] = refusal
    free = [wanted for wanted in new if wanted.topic_partition not in made]
    try:
        made.update((log.topic_partition, log) for log in directory.create_all(free, now_ms))
    except StorageError as error:
        if isinstance(error, DiskFullError) and len(free) > 1:
            for wanted in free:
                made.update(create_each(directory, [wanted], now_ms))
        else:
            made.update((wanted.topic_partition, error) for wanted in free)
    return made


def _refusal(directory: LogDirectory, name: TopicPartition) -> StorageError | None:
    """Return why no log of this name can be created in a directory, None if one can."""
    try:
        if directory.is_in_the_way(name):
            return StorageError(str(directory.path / str(name)), "is no log; move it out of the log dir")
    except StorageError as error:
        return error
    return None


def _for_each(directories: Sequence[LogDirectory], action: Callable[[LogDirectory], None]) -> None:
    """Act on all directories, then raise the first StorageError."""
    first: StorageError | None = None
    for directory in directories:
        try:
            action(directory)
        except StorageError as error:
            first = first or error
    if first is not None:
        raise first


def _doubled(
    directories: Sequence[LogDirectory], names: Set[TopicPartition] | None = None
) -> dict[TopicPartition, PipelineError]:
    """Partitions (of `names`, or of all) that are in two directories, with an error that says what to do."""
    found: dict[TopicPartition, Path] = {}
    doubled: dict[TopicPartition, PipelineError] = {}
    for directory in directories:
        for topic_partition in {*directory.logs, *directory.failed} if names is None else names:
            if topic_partition not in directory.logs and topic_partition not in directory.failed:
                continue
            if topic_partition in found:
                path = str(directory.path / str(topic_partition))
                doubled[topic_partition] = StorageError(
                    path, f"is in {found[topic_partition]} as well; move one of the two away while the broker is down"
                )
            found[topic_partition] = directory.path
    return doubled
