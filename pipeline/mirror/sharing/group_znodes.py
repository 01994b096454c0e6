"""The znodes of a mirror group, in the ZooKeeper of the hub. Pure.

    /mirrors/<group>/members/<member>         ephemeral: host, process, HTTP address and selection of a member
    /mirrors/<group>/rates/<member>           ephemeral: byte rates of the partitions that the member copies, and those
                                              that brokers refuse from it
    /mirrors/<group>/leader                   ephemeral: the member that computes the assignment
    /mirrors/<group>/assignment               number and parts of the present assignment
    /mirrors/<group>/assignment/<number>-...  a part of an assignment, since a znode has at most 1 MB

`decode` raises only `CoordinationError`, with the znode's path.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, Field

from pipeline.coordination.znodes import from_json, to_json
from pipeline.errors import CoordinationError
from pipeline.mirror.sharing.assignment import Holding, WorkUnit
from pipeline.settings import MAX_INT32

ROOT = "/mirrors"
MAX_PART_BYTES = 400_000
"""Far below the 1 MB that ZooKeeper accepts."""
MAX_PARTS = 1_000
MAX_PARTITIONS_OF_ROW = 10_000
MAX_TEXT = 1_000
MAX_NUMBER = 10**15
"""Bound of numbers of assignments, so that a number by hand leaves others above it."""
MAX_EPOCH = 10**15
"""Bound of copier epochs that a group gives out: more than 30,000 years in ms. Epochs beyond are of no clock."""
MAX_RATE = 1e15

_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Partition = Annotated[int, Field(ge=-1, le=MAX_INT32)]
_Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
_Rate = Annotated[float, Field(ge=0, le=MAX_RATE)]


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """Paths of one group."""

    group: str

    @property
    def members(self) -> str:
        """The parent of the members."""
        return f"{ROOT}/{self.group}/members"

    def member(self, member: str) -> str:
        """The znode of one member."""
        return f"{self.members}/{member}"

    @property
    def rates(self) -> str:
        """The parent of the members' rates."""
        return f"{ROOT}/{self.group}/rates"

    def rates_of(self, member: str) -> str:
        """The rates of one member."""
        return f"{self.rates}/{member}"

    @property
    def leader(self) -> str:
        """The member that leads."""
        return f"{ROOT}/{self.group}/leader"

    @property
    def assignment(self) -> str:
        """The head of the assignment, and the parent of its parts."""
        return f"{ROOT}/{self.group}/assignment"

    def part(self, name: str) -> str:
        """Part of an assignment."""
        return f"{self.assignment}/{name}"


class _ProcessJson(BaseModel):
    version: int
    host: _Text
    pid: int
    http: _Text
    joined_ms: int
    selection: _Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProcess:
    """A mirror process of the group."""

    host: str
    pid: int
    http: str
    """Address of its HTTP server."""
    joined_ms: int
    selection: str = ""
    """Text that is the same for members which select the same topics (`changes.selection_of`); empty if not known."""

    def encode(self) -> bytes:
        """JSON version 1."""
        fields = {"host": self.host, "pid": self.pid, "http": self.http, "joined_ms": self.joined_ms}
        return to_json({"version": 1, **fields, "selection": self.selection})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """JSON version 1."""
        found = from_json(path, data, _ProcessJson)
        return cls(**found.model_dump(exclude={"version"}))


class _HeadJson(BaseModel):
    version: int
    number: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    parts: Annotated[list[_Text], Field(max_length=MAX_PARTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentHead:
    """The number of an assignment, and the names of its parts, which begin with the number."""

    number: int
    parts: Sequence[str]

    def encode(self) -> bytes:
        """JSON version 1."""
        return to_json({"version": 1, "number": self.number, "parts": list(self.parts)})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """JSON version 1."""
        found = from_json(path, data, _HeadJson)
        return cls(number=found.number, parts=found.parts)


class _PartJson(BaseModel):
    version: int
    rows: list[tuple[_Text, _Text, _Text, _Epoch, list[_Partition]]]


def number_of(part: str) -> int:
    """Return the number of the assignment that a part belongs to; 0 for another name."""
    number = part.partition("-")[0]
    is_number = number.isascii() and number.isdecimal() and len(number) < len(str(MAX_NUMBER))
    return int(number) if is_number else 0


def encode_parts(assigned: Mapping[WorkUnit, Holding]) -> list[bytes]:
    """Encode an assignment in parts: rows of source, topic, member, epoch and partitions."""
    rows: dict[tuple[str, str, str, int], list[int]] = {}
    for unit, holding in sorted(assigned.items()):
        rows.setdefault((unit.source, unit.topic, holding.member, holding.epoch), []).append(unit.partition)
    return [_as_part(part) for part in _parts([*key, numbers] for key, numbers in rows.items())]


def decode_parts(paths: Sequence[str], parts: Sequence[bytes]) -> dict[WorkUnit, Holding]:
    """Decode all parts of an assignment. Raises CoordinationError."""
    found: dict[WorkUnit, Holding] = {}
    for path, data in zip(paths, parts, strict=True):
        for source, topic, member, epoch, numbers in from_json(path, data, _PartJson).rows:
            for number in numbers:
                if found.setdefault(WorkUnit(source, topic, number), Holding(member, epoch)) != Holding(member, epoch):
                    raise CoordinationError(path, f"gives {source}/{topic}-{number} to two members")
    return found


class Refusal(NamedTuple):
    """The epoch of a member that brokers refuse, and the highest that they know by ZooKeeper, 0 if by nothing."""

    epoch: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """Report of a member to the leader: bytes per second of its units, and the units that brokers refuse from it."""

    rates: Mapping[WorkUnit, float] = field(default_factory=dict)
    refusals: Mapping[WorkUnit, Refusal] = field(default_factory=dict)

    def encode(self) -> bytes:
        """JSON version 1; of more rates and refusals than fit into a znode the highest, and the first."""
        highest = sorted(self.rates, key=lambda unit: (-self.rates[unit], unit))
        refused = sorted(self.refusals)
        while True:
            topics: dict[tuple[str, str], dict[str, int]] = {}
            for unit in highest:
                topics.setdefault((unit.source, unit.topic), {})[str(unit.partition)] = round(self.rates[unit])
            document = {
                "version": 1,
                "rows": [[*key, of_topic] for key, of_topic in sorted(topics.items())],
                "refused": [[*unit, *self.refusals[unit]] for unit in refused],
            }
            data = to_json(document)
            if len(data) <= MAX_PART_BYTES:
                return data
            highest, refused = highest[: len(highest) // 2], refused[: len(refused) // 2]

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """JSON version 1. Raises CoordinationError."""
        found = from_json(path, data, _ReportJson)
        rates = {
            WorkUnit(source, topic, number): rate
            for source, topic, of_topic in found.rows
            for number, rate in of_topic.items()
        }
        refusals = {
            WorkUnit(source, topic, number): Refusal(epoch, newest)
            for source, topic, number, epoch, newest in found.refused
        }
        return cls(rates=rates, refusals=refusals)


class _ReportJson(BaseModel):
    version: int
    rows: list[tuple[_Text, _Text, dict[_Partition, _Rate]]]
    refused: list[tuple[_Text, _Text, _Partition, _Epoch, _Epoch]] = []


def _parts(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    """Group rows into parts that a znode can hold. A row of many partitions is divided."""
    part: list[list[Any]] = []
    size = 0
    for row in rows:
        numbers = row[-1]
        for start in range(0, len(numbers), MAX_PARTITIONS_OF_ROW):
            piece = [*row[:-1], numbers[start : start + MAX_PARTITIONS_OF_ROW]]
            length = len(json.dumps(piece)) + 2
            if part and size + length > MAX_PART_BYTES:
                yield part
                part, size = [], 0
            part.append(piece)
            size += length
    yield part


def _as_part(rows: list[list[Any]]) -> bytes:
    return to_json({"version": 1, "rows": rows})
