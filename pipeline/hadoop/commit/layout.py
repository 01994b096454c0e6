"""Paths of a load below `<root>/<topic>/`. Pure: names from values and back.

    _commits/00000000000000000007.json       the manifests; files that none of them lists do not exist for readers
    _commits/.00000000000000000007.<run>     a manifest before its rename
    _checkpoints/00000000000000000100.parquet  all that the manifests up to this number add up to
    _checkpoints/.00000000000000000100.<run>   a checkpoint before its rename
    metadata/                                metadata of an Iceberg table, in place of _commits (table=iceberg)
    _runs/<run>, <run>.1, <run>.2, ...       marks of a run that has not ended well yet
    hourly/YYYY/MM/DD/HH/<partition>-<first offset>-<run>-<task>-<attempt>-<number>.<avro|parquet>
    hive/dt=YYYY-MM-DD/hour=HH/<the same>    data files of loads with path.format=hive
    <folder of an hour>/_COMPLETE            markers of complete hours (`complete_hours.py`)
    quarantine/<partition>-<first offset>-<run>-<task>-<attempt>-<number>.avro          records set aside
    quarantine/batch-<partition>-<first offset>-<run>-<task>-<attempt>-<number>.avro    batches that cannot be opened
    _quarantine/                             both beside an Iceberg table, whose tools delete what it does not list, but
                                             in folders of hidden names

Hours are UTC. A file name holds the run, task and attempt that wrote it, so no two attempts ever meet. Files of one
table may lie in folders of both formats.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

from pipeline.errors import ConfigurationError

MIN_TIMESTAMP_MS = -62_135_596_800_000
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The years 1 to 9999: a record of any other time has no folder."""

QUARANTINES = ("quarantine", "_quarantine")
"""Folders of the quarantine: that of manifests, and that of Iceberg tables."""
PathFormat = Literal["hourly", "hive"]
"""Format of the folders of hours, and the name of the folder that holds them."""
PATH_FORMATS: Final[tuple[PathFormat, ...]] = get_args(PathFormat)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_RUN_ID = re.compile(r"[a-z0-9]{1,40}")
_MANIFEST = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.parquet")
_TEMPORARY = re.compile(r"\.\d{20}\.(?P<run_id>[a-z0-9]{1,40})")
_MARK = re.compile(r"(?P<run_id>[a-z0-9]{1,40})(?:\.(?P<number>\d{1,6}))?")
_HOUR = re.compile(r"(?:^|/)(?:hourly/(\d{4})/(\d\d)/(\d\d)/(\d\d)|hive/dt=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d))$")
_FILE = re.compile(
    r"(?:batch-)?(?P<partition>\d+)-(?P<first_offset>\d+)-(?P<run_id>[a-z0-9]+)-(?P<task>\d+)-(?P<attempt>\d+)-(?P<number>\d+)"
    r"\.(?:avro|parquet)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """An attempt of a task of a run, which makes file names unique."""

    run_id: str
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """Paths below one topic's directory, `topic_root`."""

    topic_root: str

    @property
    def commits(self) -> str:
        """Directory of the manifests."""
        return f"{self.topic_root}/_commits"

    @property
    def data_folders(self) -> tuple[str, ...]:
        """Directories of the data files, one for each format of folders."""
        return tuple(f"{self.topic_root}/{path_format}" for path_format in PATH_FORMATS)

    @property
    def iceberg_metadata(self) -> str:
        """Directory of the metadata of an Iceberg table, which a topic has in place of manifests."""
        return f"{self.topic_root}/metadata"

    @property
    def runs(self) -> str:
        """Directory of the marks of unfinished runs."""
        return f"{self.topic_root}/_runs"

    def manifest(self, sequence: int) -> str:
        """Path of a committed manifest."""
        return f"{self.commits}/{sequence:020d}.json"

    def temporary_manifest(self, sequence: int, run_id: str) -> str:
        """Path of a manifest that is being written."""
        return f"{self.commits}/.{sequence:020d}.{run_id}"

    @property
    def checkpoints(self) -> str:
        """Directory of the checkpoints."""
        return f"{self.topic_root}/_checkpoints"

    def checkpoint(self, sequence: int) -> str:
        """Path of the checkpoint of a commit."""
        return f"{self.checkpoints}/{sequence:020d}.parquet"

    def temporary_checkpoint(self, sequence: int, run_id: str) -> str:
        """Path of a checkpoint that is being written."""
        return f"{self.checkpoints}/.{sequence:020d}.{run_id}"

    def run(self, run_id: str, number: int = 0) -> str:
        """Path of a mark of an unfinished run."""
        return f"{self.runs}/{run_id}.{number}" if number else f"{self.runs}/{run_id}"

    def clock(self, run_id: str) -> str:
        """Path of an empty file that a run writes to learn the time of the file system."""
        return f"{self.runs}/.clock.{run_id}"

    def absolute(self, relative: str) -> str:
        """Path of a file that a manifest lists."""
        return f"{self.topic_root}/{relative}"

    def relative(self, absolute: str) -> str:
        """Name under which a manifest lists a file."""
        return absolute.removeprefix(f"{self.topic_root}/")


def topic_layout(root: str, topic: str) -> TopicLayout:
    """Return the layout of a topic below the root of a load. Raises ConfigurationError for a bad topic name."""
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise ConfigurationError("topic", f"'{topic}' is not a topic name")
    return TopicLayout(f"{root.rstrip('/')}/{topic}")


def check_run_id(run_id: str) -> str:
    """Return the id. Raises ConfigurationError unless it has 1 to 40 lower-case letters and digits."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigurationError("run_id", f"'{run_id}' is not 1 to 40 lower-case letters and digits")
    return run_id


def hour_path(hour_ms: int, path_format: PathFormat) -> str:
    """Return the name of the folder of an hour, which begins at `hour_ms`, below all folders of the format."""
    hour = _EPOCH + timedelta(milliseconds=hour_ms)
    if path_format == "hive":
        return f"dt={hour.year:04d}-{hour.month:02d}-{hour.day:02d}/hour={hour.hour:02d}"
    return f"{hour.year:04d}/{hour.month:02d}/{hour.day:02d}/{hour.hour:02d}"


def hour_folder(hour_ms: int, path_format: PathFormat) -> str:
    """Return the relative name of the folder of an hour, which begins at `hour_ms`."""
    return f"{path_format}/{hour_path(hour_ms, path_format)}"


def hour_of_folder(folder: str) -> int | None:
    """Return the begin in ms of the hour of a folder; None for a foreign name."""
    match = _HOUR.search(folder)
    if match is None:
        return None
    try:
        year, month, day, hour = (int(part) for part in match.groups() if part is not None)
        start = datetime(year, month, day, hour, tzinfo=UTC)
    except ValueError:  # digits of no calendar
        return None
    return (start - _EPOCH) // timedelta(milliseconds=1)


def data_file(folder: str, partition: int, first_offset: int, attempt: TaskAttempt, number: int, suffix: str) -> str:
    """Return the relative name of a data file in the folder of its hour; `number` counts the files of the attempt."""
    return f"{folder}/{_name(partition, first_offset, attempt, number)}.{suffix}"


def quarantine_file(
    partition: int,
    first_offset: int,
    attempt: TaskAttempt,
    number: int,
    *,
    of_batches: bool = False,
    is_hidden: bool = False,
) -> str:
    """Return the relative name of a file of records that could not be decoded, or of batches that cannot be opened."""
    kind = "batch-" if of_batches else ""
    return f"{QUARANTINES[is_hidden]}/{kind}{_name(partition, first_offset, attempt, number)}.avro"


def run_of(path: str) -> str | None:
    """Return the run that wrote a data or quarantine file; None for a foreign name."""
    match = _FILE.fullmatch(path.rsplit("/", 1)[-1])
    return match["run_id"] if match else None


def place_of_rows(path: str) -> str:
    """Return what a data file's name says whatever its run and folders: hour, partition and first offset."""
    folder, _, name = path.rpartition("/")
    hour_ms = hour_of_folder(folder)
    place = folder if hour_ms is None else hour_folder(hour_ms, "hourly")
    return "/".join((place, "-".join(name.split("-", 2)[:2])))


def temporary_run_of(path: str) -> str | None:
    """Return the run that wrote a manifest or checkpoint under its temporary name; None for another file."""
    match = _TEMPORARY.fullmatch(path.rsplit("/", 1)[-1])
    return match["run_id"] if match else None


def parse_mark(path: str) -> tuple[str, int] | None:
    """Return run and number of a mark; None for another file."""
    match = _MARK.fullmatch(path.rsplit("/", 1)[-1])
    return (match["run_id"], int(match["number"] or 0)) if match else None


def is_clock(path: str) -> bool:
    """Return True for a file by which a run learned the time (`TopicLayout.clock`)."""
    return path.rsplit("/", 1)[-1].startswith(".clock.")


def manifest_sequences(names: Sequence[str]) -> list[int]:
    """Return the sequence numbers of the manifests among paths, ascending; other names are skipped."""
    return _sequences(_MANIFEST, names)


def checkpoint_sequences(names: Sequence[str]) -> list[int]:
    """Return the commits of the checkpoints among paths, ascending; other names are skipped."""
    return _sequences(_CHECKPOINT, names)


def _sequences(pattern: re.Pattern[str], names: Sequence[str]) -> list[int]:
    matches = (pattern.fullmatch(name.rsplit("/", 1)[-1]) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _name(partition: int, first_offset: int, attempt: TaskAttempt, number: int) -> str:
    return f"{partition}-{first_offset}-{attempt.run_id}-{attempt.task}-{attempt.attempt}-{number}"
