"""Verdicts on all topics of one hour, in little memory: a month of a thousand topics has 720,000 of them. Pure.

Topics without any remark are plain: all stages agree, and each leader and producer gave its word. They are kept in
arrays, grouped by what their verdicts rest on. What they may still lack concerns the whole way (an audit topic that was
not read, metadata): that is in the stamp of the way, which is renewed without the rows of the hour.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.judgement.comparison import STATUSES, code_of
from pipeline.audit.judgement.verdicts import Finding, Stage, Status, Witness
from pipeline.audit.ledger.keys import Int64s

Sums = tuple[int, int, int, int]
"""Records, bytes, batches and sum of CRCs."""

_TIER_ORDER = ("produced", "live", "mirrored", "replica", "consumed", "loaded", "stored")


FOLDED: Final = "a counter keeps the hour no longer apart; with all older hours stages are equal"
"""Words of a basis: verdicts that rest on it may change with any older hour."""
JOINED: Final = "records counted one by one; with the neighbouring hours there are as many in all"
"""Words of a basis: verdicts that rest on it may change with the hours beside them."""


@dataclass(frozen=True, slots=True)
class TopicHour:
    """Verdict on one topic and hour."""

    status: Status
    sums: Mapping[Stage, Sums]
    findings: Sequence[Finding] = ()
    rests_on: Sequence[str] = ()
    missing: Sequence[Witness] = ()

    @property
    def is_folded(self) -> bool:
        """True if the verdict rests on older hours, too."""
        return any(FOLDED in text for text in self.rests_on)

    @property
    def is_joined(self) -> bool:
        """True if the verdict rests on the hours beside it, too."""
        return any(JOINED in text for text in self.rests_on)


def stage_order(stage: Stage) -> tuple[int, str]:
    """Return the place of a stage on the way."""
    return _TIER_ORDER.index(stage.tier), stage.name


class WayStamp(NamedTuple):
    """Status of the plain topics of a way in an hour, and the witnesses that all of them lack."""

    status: Status
    missing: tuple[Witness, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTopics:
    """Topics of one live cluster and hour without any remark, sorted.

    `way` is the number of the live cluster. `sums` are the different sums of stages (records, bytes, batches, sum of
    CRCs by topic), and `places` says which of them each stage has. `is_read`: all audit topics that these topics need
    had been read beyond the hour when they were judged.
    """

    way: int
    is_mirrored: bool
    is_read: bool
    topics: Int64s
    stages: tuple[Stage, ...]
    rests_on: tuple[str, ...]
    sums: tuple[NDArray[np.uint64], ...] = ()
    places: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, bool]:
        """Key of the stamp."""
        return self.way, self.is_mirrored

    def place(self, topic: int) -> int:
        """Return the place of a topic; -1 if it is not among these."""
        place = int(np.searchsorted(self.topics, topic))
        return place if place < len(self.topics) and self.topics[place] == topic else -1

    def verdict(self, place: int, stamp: WayStamp) -> TopicHour:
        """Return the verdict on the topic at a place."""
        sums = [each[place].tolist() for each in self.sums]
        return TopicHour(
            status=stamp.status,
            sums={stage: tuple(sums[number]) for stage, number in zip(self.stages, self.places, strict=True)},
            rests_on=self.rests_on if stamp.status is Status.EXACT else (),
            missing=stamp.missing,
        )

    def without(self, topics: Int64s) -> "PlainTopics | None":
        """Return these topics without some; None if none is left."""
        kept = ~np.isin(self.topics, topics)
        if kept.all():
            return self
        if not kept.any():
            return None
        return PlainTopics(
            way=self.way,
            is_mirrored=self.is_mirrored,
            is_read=self.is_read,
            topics=self.topics[kept],
            stages=self.stages,
            rests_on=self.rests_on,
            sums=tuple(each[kept] for each in self.sums),
            places=self.places,
        )


def distinct_sums(sums: Sequence[NDArray[np.uint64]]) -> tuple[tuple[NDArray[np.uint64], ...], tuple[int, ...]]:
    """Return the different ones of the sums of stages, and which of them each stage has."""
    found: list[NDArray[np.uint64]] = []
    places = []
    for each in sums:
        place = next((number for number, known in enumerate(found) if np.array_equal(known, each)), len(found))
        if place == len(found):
            found.append(each)
        places.append(place)
    return tuple(found), tuple(places)


@dataclass(frozen=True, slots=True)
class HourVerdicts:
    """Verdicts on the topics of an hour. A topic is in `others`, or in one group of plain topics for each way."""

    others: Mapping[int, TopicHour] = field(default_factory=dict)
    plain: Sequence[PlainTopics] = ()
    stamps: Mapping[tuple[int, bool], WayStamp] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return a number that is 0 only if there is no verdict."""
        return len(self.others) + len(self.plain)

    def get(self, topic: int) -> TopicHour | None:
        """Return the verdict on a topic; None if the topic has none."""
        found = self.others.get(topic)
        if found is not None:
            return found
        parts = [(each, place) for each in self.plain if (place := each.place(topic)) >= 0]
        parts.sort(key=lambda part: part[0].way)
        return joined_verdict([each.verdict(place, self.stamps[each.key]) for each, place in parts]) if parts else None

    def topics(self) -> set[int]:
        """Return the topics that have a verdict."""
        return self.others.keys() | {topic for each in self.plain for topic in each.topics.tolist()}

    def worst_codes(self) -> tuple[Int64s, NDArray[np.int8]]:
        """Return the topics, each once, and the codes of their statuses: the worst one of all ways."""
        numbers = [each.topics for each in self.plain]
        codes = [np.full(len(each.topics), code_of(self.stamps[each.key].status), np.int8) for each in self.plain]
        numbers.append(np.fromiter(self.others, np.int64, len(self.others)))
        others = (code_of(verdict.status) for verdict in self.others.values())
        codes.append(np.fromiter(others, np.int8, len(self.others)))
        topics, status = np.concatenate(numbers), np.concatenate(codes)
        if len({each.way for each in self.plain}) <= 1:  # no topic is in several groups
            return topics, status
        order = np.lexsort((status, topics))
        last = order[np.diff(topics[order], append=-1) != 0]
        return topics[last], status[last]

    def by_status(self) -> dict[Status, list[int]]:
        """Return the topics of each status."""
        found: dict[Status, list[int]] = {}
        topics, codes = self.worst_codes()
        for topic, code in zip(topics.tolist(), codes.tolist(), strict=True):
            found.setdefault(STATUSES[code], []).append(topic)
        return found

    def numbers_by_status(self) -> Counter[Status]:
        """Return the number of topics of each status."""
        numbers = np.bincount(self.worst_codes()[1], minlength=len(STATUSES)).tolist()
        return Counter({status: number for status, number in zip(STATUSES, numbers, strict=True) if number})

    def others_of(self, statuses: Set[Status]) -> list[int]:
        """Return the topics of these statuses that are not plain. What differs never is."""
        return [topic for topic, verdict in self.others.items() if verdict.status in statuses]

    def unread(self) -> Iterator[PlainTopics]:
        """Yield the plain topics that must be judged again once their audit topics have been read."""
        return (each for each in self.plain if not each.is_read)

    def without(self, topics: set[int]) -> "HourVerdicts":
        """Return the verdicts on all topics but these."""
        gone = np.fromiter(topics, np.int64, len(topics))
        kept = (each.without(gone) for each in self.plain)
        others = {topic: verdict for topic, verdict in self.others.items() if topic not in topics}
        return HourVerdicts(others, [each for each in kept if each is not None], self.stamps)


def joined_verdict(parts: Sequence[TopicHour]) -> TopicHour:
    """Return the verdict on a topic that several live clusters have."""
    if len(parts) == 1:
        return parts[0]
    sums: dict[Stage, Sums] = {}
    for part in parts:
        for stage, each in part.sums.items():
            known = sums.get(stage, (0, 0, 0, 0))
            records, size, batches = (a + b for a, b in zip(known[:3], each[:3], strict=True))
            sums[stage] = (records, size, batches, (known[3] + each[3]) % 2**64)
    return TopicHour(
        status=max((part.status for part in parts), key=code_of),
        sums=sums,
        findings=tuple(finding for part in parts for finding in part.findings),
        rests_on=tuple(dict.fromkeys(text for part in parts for text in part.rests_on)),
        missing=tuple(dict.fromkeys(witness for part in parts for witness in part.missing)),
    )


def is_settled(verdict: TopicHour) -> bool:
    """True if a verdict cannot change by waiting, only by new counts."""
    return verdict.status in (Status.EXACT, Status.RECOMPRESSED, Status.QUARANTINED)
