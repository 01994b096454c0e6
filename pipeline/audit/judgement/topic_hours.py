"""Verdicts on the topics of one hour, of one live cluster and joined over all of them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.comparison import STATUSES, Remark, code_of
from pipeline.audit.judgement.deleted_topics import deletion_note, name_of_deleted
from pipeline.audit.judgement.edges import LIVE
from pipeline.audit.judgement.findings import findings_of
from pipeline.audit.judgement.hour_cells import HourCells
from pipeline.audit.judgement.hour_verdicts import (
    FOLDED,
    JOINED,
    PlainTopics,
    Sums,
    TopicHour,
    WayStamp,
    distinct_sums,
    stage_order,
)
from pipeline.audit.judgement.missing_words import MissingWord, lost_word
from pipeline.audit.judgement.older import lack_hours
from pipeline.audit.judgement.sentences import records_text
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import NOT_OVER, Stage, Status, Witness
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger.keys import LIFE_BITS, PARTITION_BITS, Int64s
from pipeline.audit.ledger.row_table import Mask
from pipeline.records.tally import HOUR_MS

MAX_PLAIN_STAGES: Final = 50
"""Stages of an hour up to which topics may be plain: their presence is one bit each."""
SUMMED: Final = ("records", "bytes", "batches", "crc_sum")


def judge_topics(hour: HourCells, way: int) -> tuple[list[PlainTopics], dict[int, TopicHour]]:
    """Return the plain topics of an hour, and the verdicts of one live cluster on the others. `way`: its number.

    No topic is plain in the row of older hours, whose end is not the same for all topics.
    """
    words = hour.words
    is_over = words.timing.now_ms >= hour.end_ms + words.timing.grace_ms
    sums = _StageSums(hour)
    basis = _Basis(hour)
    is_plain = np.zeros(len(sums.topics), np.bool_)
    if is_over and hour.hour_ms != OLDER and len(hour.stages) <= MAX_PLAIN_STAGES:
        is_plain = _are_plain(hour)
    plain = list(_plain_groups(hour, way, sums, basis, is_plain))
    left = sums.topics[~is_plain].tolist()
    return plain, _judge_each(hour, left, sums, basis) if left else {}


def _judge_each(hour: HourCells, topics: Sequence[int], sums: "_StageSums", basis: "_Basis") -> dict[int, TopicHour]:
    """Return the verdicts on topics that are not plain."""
    words = hour.words
    ends = {topic: hour.end_of(topic) for topic in topics}
    over = {topic for topic, end_ms in ends.items() if words.timing.now_ms >= end_ms + words.timing.grace_ms}
    findings = findings_of(hour, over)
    codes = _codes(hour)
    has_doubts = bool(hour.is_deleted.any() or hour.doubtful)
    result = {}
    for topic in topics:
        mine = findings.get(topic, ())
        missing = words.missing(topic, hour.hour_ms, ends[topic]) if topic in over else [_NOT_OVER]
        if has_doubts:
            missing = [*missing, *_doubts(hour, topic)]
        if topic in over:
            missing = [*missing, *unreported_producers(hour, topic)]
        if topic in hour.sent_to_replica:
            missing = [*missing, _sent_to_replica(hour, topic)]
        stages = sums.of(topic)
        if not mine and not missing and not codes[topic]:
            rests_on = basis.of(topic, stages)
            if topic in words.deleted:
                rests_on = (*rests_on, deletion_note(words.deleted[topic]))
            result[topic] = TopicHour(Status.EXACT, stages, rests_on=rests_on)
            continue
        status = max((finding.status for finding in mine), key=code_of, default=Status.EXACT)
        status = max(status, STATUSES[codes.get(topic, 0)], key=code_of)
        status = status_with(status, missing)
        witnesses = tuple(word.witness for word in missing)
        witnesses += tuple(finding.witness for finding in mine if finding.witness is not None)
        result[topic] = TopicHour(
            status=status,
            sums=stages,
            findings=tuple(mine),
            rests_on=basis.of(topic, stages) if status is Status.EXACT else (),
            missing=tuple(words.shared.setdefault(each, each) for each in dict.fromkeys(witnesses)),
        )
    return result


class _StageSums:
    """Sums of each stage of an hour by topic, and which topics have rows of it."""

    def __init__(self, hour: HourCells) -> None:
        self._hour = hour
        self.topics: Int64s = np.fromiter(hour.slices, np.int64, len(hour.slices))
        self.starts = [cells.start for cells in hour.slices.values()]
        self.sums = []
        self.is_present = []
        for stage in hour.stages:
            columns = [np.add.reduceat(stage.rows[name], self.starts) for name in SUMMED]
            self.sums.append(np.stack([column.astype(np.uint64) for column in columns], axis=1))
            self.is_present.append(np.logical_or.reduceat(stage.is_present, self.starts))

    def of(self, topic: int) -> dict[Stage, Sums]:
        """Return the sums of a topic by stage."""
        place = int(np.searchsorted(self.topics, topic))
        stages = zip(self._hour.stages, self.sums, self.is_present, strict=True)
        return {
            self._hour.shown(stage.stage, topic): _four(sums[place])
            for stage, sums, present in stages
            if present[place]
        }


def _four(sums: NDArray[np.uint64]) -> Sums:
    records, size, batches, crc_sum = sums.tolist()
    return records, size, batches, crc_sum


def _are_plain(hour: HourCells) -> Mask:
    """True for each topic of which all cells agree without a remark, and all leaders and producers gave their word."""
    unlike = hour.is_deleted.copy()
    for edge in hour.edges:
        unlike |= (edge.compared.codes != 0) | (edge.compared.remarks != Remark.NONE)
    for _, mask in hour.doubtful:
        unlike |= mask
    starts = [cells.start for cells in hour.slices.values()]
    topics = np.fromiter(hour.slices, np.int64, len(hour.slices))
    plain = ~np.logical_or.reduceat(unlike, starts) & hour.words.are_heard(topics, hour.end_ms)
    live = hour.words.way.live
    has_late = live is not None and bool(live.late)
    noted = [topic for topic in hour.slices if hour.late(topic) is not None] if has_late else []
    noted += _with_void_rows(hour)
    noted += [topic for topic in _without_reports(hour) if unreported_producers(hour, topic)]
    noted += hour.sent_to_replica
    if noted:
        plain &= ~np.isin(topics, noted)
    return plain


def _plain_groups(
    hour: HourCells, way: int, sums: _StageSums, basis: "_Basis", is_plain: Mask
) -> Iterator[PlainTopics]:
    """Yield the plain topics in groups of those that have the same stages, and rest on the same."""
    if not is_plain.any():
        return
    words = hour.words
    mirrored = words.way.are_mirrored(sums.topics)
    keys = (basis.has_sums.astype(np.int64) << 1) | mirrored
    keys = (keys << 1) | np.fromiter((count == 1 for count in hour.roots.values()), np.int64, len(hour.roots))
    for mask in (*sums.is_present, *basis.by_record.values()):
        keys = (keys << 1) | mask
    for key in np.unique(keys[is_plain]).tolist():
        chosen = np.flatnonzero(is_plain & (keys == key))
        first = int(chosen[0])
        topic = int(sums.topics[first])
        there = [number for number, present in enumerate(sums.is_present) if present[first]]
        # Of two stages that reports name alike the last one holds, as in `_StageSums.of`.
        by_stage = {hour.shown(hour.stages[number].stage, topic): sums.sums[number][chosen] for number in there}
        different, places = distinct_sums(list(by_stage.values()))
        yield PlainTopics(
            way=way,
            is_mirrored=bool(mirrored[first]),
            is_read=words.is_read(hour.end_ms, is_mirrored=bool(mirrored[first])),
            topics=sums.topics[chosen],
            stages=tuple(by_stage),
            rests_on=basis.of(topic, dict.fromkeys(by_stage, (0, 0, 0, 0))),
            sums=different,
            places=places,
        )


def stamp_of(words: Words, hour_ms: int, *, is_mirrored: bool) -> WayStamp:
    """Return the status of the plain topics of an hour that is over, and what they all lack."""
    missing = words.missing_to_all(hour_ms, hour_ms + HOUR_MS, is_mirrored=is_mirrored)
    return WayStamp(status_with(Status.EXACT, missing), tuple(dict.fromkeys(word.witness for word in missing)))


def plain_without_rows(words: Words, way: int, topics: Int64s, hour_ms: int) -> list[PlainTopics]:
    """Return the plain ones of topics that a live cluster has, without rows of an hour: its word is needed."""
    end_ms = hour_ms + HOUR_MS
    if words.timing.now_ms < end_ms + words.timing.grace_ms or not len(topics):
        return []
    heard = topics[words.are_heard(topics, end_ms)]
    mirrored = words.way.are_mirrored(heard)
    return [
        PlainTopics(
            way=way,
            is_mirrored=is_mirrored,
            is_read=words.is_read(end_ms, is_mirrored=is_mirrored),
            topics=heard[mirrored == is_mirrored],
            stages=(),
            rests_on=(f"{words.way.cluster}: nobody counted anything",),
        )
        for is_mirrored in (False, True)
        if (mirrored == is_mirrored).any()
    ]


def judge_without_rows(words: Words, topic: int, hour_ms: int) -> TopicHour:
    """Return the verdict of a live cluster that has a topic and no rows of an hour: its word is needed all the same."""
    end_ms = hour_ms + HOUR_MS
    is_over = words.timing.now_ms >= end_ms + words.timing.grace_ms
    missing = words.missing(topic, hour_ms, end_ms) if is_over else [_NOT_OVER]
    return TopicHour(
        status=status_with(Status.EXACT, missing),
        sums={},
        rests_on=() if missing else (f"{words.way.cluster}: nobody counted anything",),
        missing=tuple(word.witness for word in missing),
    )


_NOT_OVER = MissingWord(witness=Witness(name=NOT_OVER, reason="the hour is not over"), is_lost=False)


def status_with(status: Status, missing: Sequence[MissingWord]) -> Status:
    """Return the status, or PENDING or UNKNOWN if a witness is missing and the status is better."""
    for word in missing:
        status = max(status, Status.UNKNOWN if word.is_lost else Status.PENDING, key=code_of)
    return status


def _codes(hour: HourCells) -> dict[int, int]:
    """Return the worst code of each topic, also of records under way that are no findings."""
    starts = [cells.start for cells in hour.slices.values()]
    worst = np.zeros(len(starts), np.int8)
    pending = code_of(Status.PENDING)
    for edge in hour.edges:
        under_way = np.where(edge.compared.codes == pending, pending, 0)
        worst = np.maximum(worst, np.maximum.reduceat(under_way, starts))
    return dict(zip(hour.slices, worst.tolist(), strict=True))


def _doubts(hour: HourCells, topic: int) -> list[MissingWord]:
    found = []
    cluster = hour.words.way.cluster
    of_topic = hour.slices[topic]
    for place in np.flatnonzero(hour.is_deleted[of_topic]).tolist():
        partition = hour.words.partition(int(hour.cells[of_topic.start + place]))
        found.append(
            MissingWord(
                witness=Witness(
                    name=name_of_deleted(partition.topic, cluster),
                    reason="its name was given to another topic; what became of its records is not compared",
                    cluster=cluster,
                    partition=partition,
                ),
                is_lost=True,
            )
        )
    for stage, mask in hour.doubtful:
        no_room = hour.hour_ms == OLDER and mask[of_topic].any() and lack_hours(stage, hour.borders)[of_topic].any()
        for place in np.flatnonzero(mask[of_topic]).tolist():
            partition = hour.words.partition(int(stage.cells[of_topic.start + place]))
            found.append(
                MissingWord(
                    witness=Witness(
                        name=f"counter of {partition} in {stage.cluster}",
                        reason=_FORGOTTEN.get(stage.stage.tier, _NO_ROOM if no_room else _LOST_CHECKPOINT),
                        cluster=stage.cluster,
                        partition=partition,
                    ),
                    is_lost=True,
                )
            )
    return found


def _with_void_rows(hour: HourCells) -> set[int]:
    """Return the topics of an hour of which brokers had counted records that are lost."""
    live = hour.words.way.live
    return (
        set() if live is None else {key >> (LIFE_BITS + PARTITION_BITS) for key, _ in live.void.of_hour(hour.hour_ms)}
    )


def _without_reports(hour: HourCells) -> set[int]:
    """Return the topics of an hour of which no producer ever reported."""
    way = hour.words.way
    reported = set() if way.produced is None else way.produced.topics
    return hour.slices.keys() - reported


def unreported_producers(hour: HourCells, topic: int) -> list[MissingWord]:
    """Return the producers of an hour whose marks brokers have counted, if no producer of the topic ever reported.

    A producer that counts names its topics before it sends. So its reports are gone, or went to another cluster.
    """
    way = hour.words.way
    is_reported = way.produced is not None and topic in way.produced.topics
    if is_reported or topic not in hour.slices or way.has_copies(topic, hour.hour_ms):
        return []
    live = next(stage for stage in hour.stages if stage.stage == LIVE)
    marked = int(live.rows[hour.slices[topic]]["marked_records"].sum())
    if not marked:
        return []
    cluster = way.cluster
    name = f"producers of {hour.words.topic_name(topic)} in {cluster}"
    reason = f"brokers have {marked} records of producers that count, and the audit topic has no report of any"
    return [MissingWord(witness=Witness(name=name, reason=reason, cluster=cluster), is_lost=True)]


def _sent_to_replica(hour: HourCells, topic: int) -> MissingWord:
    """Return the producers that sent records to the replica cluster itself: a reversal may have deleted them."""
    hub = hour.words.way.replica_cluster
    name = f"producers of {hour.words.topic_name(topic)} in {hub}"
    reason = (
        f"{records_text(hour.sent_to_replica[topic])} were produced to {hub} itself, as after a promotion; no stage of "
        f"{hour.words.way.cluster} is compared with them"
    )
    return lost_word(name, reason, hub)


_NO_ROOM = "the audit has no room any more for all of its hours that are so old"
_LOST_CHECKPOINT = "it lost its checkpoint, and its log no longer has all of the hour"
_FORGOTTEN = dict.fromkeys(
    ("loaded", "stored"), "the load no longer knows all hours that are so old: commits have expired, or nobody reported"
)


def _remarks(hour: HourCells) -> dict[int, set[Remark]]:
    """Return by topic the remarks of cells that are equal."""
    found: dict[int, set[Remark]] = {}
    for edge in hour.edges:
        told = np.flatnonzero((edge.compared.remarks != Remark.NONE) & (edge.compared.codes == 0))
        for topic, remark in zip(hour.topics[told].tolist(), edge.compared.remarks[told].tolist(), strict=True):
            found.setdefault(topic, set()).add(Remark(remark))
    return found


_COUNTS_ALONE = "numbers of records are compared, and not their contents"


class _Basis:
    """Words that exact verdicts of an hour rest on. Topics with equal stages share them."""

    def __init__(self, hour: HourCells) -> None:
        self._hour = hour
        self._remarks = _remarks(hour)
        starts = [cells.start for cells in hour.slices.values()]
        has_sums: Mask = np.ones(len(starts), np.bool_)
        self.by_record: dict[Stage, Mask] = {}
        """By topic, for each stage with rows that count records one by one: such rows have no sums."""
        for stage in hour.stages:
            by_record = stage.rows["by_record"] & stage.is_present
            has_sums &= np.logical_and.reduceat(stage.rows["has_sums"] | ~stage.is_present | by_record, starts)
            if by_record.any():
                self.by_record[stage.stage] = np.logical_or.reduceat(by_record, starts)
        self.has_sums = has_sums
        """By topic: all rows but those of single records have sums."""
        self._counted = self._stages_by_record()
        self._without_sums = {topic for topic, has in zip(hour.slices, has_sums.tolist(), strict=True) if not has}
        self._shared: dict[tuple[object, ...], tuple[str, ...]] = {}

    def of(self, topic: int, stages: Mapping[Stage, Sums]) -> tuple[str, ...]:
        """Return what the verdict on a topic rests on."""
        counted = self._counted.get(topic, ())
        key = (*stages, topic in self._without_sums, counted)
        shared = self._shared.get(key)
        if shared is None:
            cluster = self._hour.words.way.cluster
            found = [f"{stage} of {cluster}" for stage in sorted(stages, key=stage_order)]
            if not counted or len(stages) > len(counted) + 1:
                found.append("sums of CRCs" if topic in self._without_sums else "sums over batch headers")
            found += [f"{cluster}: {stage} was counted record by record: {_COUNTS_ALONE}" for stage in counted]
            if Stage(tier="produced") not in stages:
                found.append(f"{cluster}: no producer counted, so nothing says what was sent")
            shared = self._shared[key] = tuple(found)
        return shared + self._notes(topic)

    def _stages_by_record(self) -> dict[int, tuple[Stage, ...]]:
        found: dict[int, tuple[Stage, ...]] = {}
        for place, topic in enumerate(self._hour.slices) if self.by_record else ():
            stages = tuple(
                self._hour.shown(stage, topic) for stage, counted in self.by_record.items() if counted[place]
            )
            if stages:
                found[topic] = stages
        return found

    def _notes(self, topic: int) -> tuple[str, ...]:
        hour, found = self._hour, []
        cluster = hour.words.way.cluster
        told = self._remarks.get(topic, set())
        if Remark.FOREIGN in told:
            foreign = _foreign(hour, topic)
            found.append(f"{cluster}: {records_text(foreign)} of producers that do not count, as the brokers have them")
        if Remark.FOLDED in told:
            found.append(f"{cluster}: {FOLDED}")
        if Remark.EDGE in told:
            found.append(f"{cluster}: {JOINED}")
        if Remark.STAMPED in told:
            found.append(
                f"{cluster}: brokers wrote their own timestamps (LogAppendTime) and checked the CRCs as they came"
            )
        late = hour.late(topic)
        if late is not None:
            last = "was counted" if late[0] == 1 else "the last were counted"
            found.append(f"{cluster}: {records_text(late[0])} came late, {last} at {iso_time(late[1])}")
        found += _unsent(hour, topic)
        return tuple(found)


def _unsent(hour: HourCells, topic: int) -> list[str]:
    """Return sentences about records that ended producers had accepted, and did not send."""
    return [
        f"producer {life.process} on {life.host} ended with {records_text(life.sign.unsent_records)} not sent"
        for life in hour.words.unsent(topic, hour.hour_ms, hour.end_of(topic))
        if life.sign is not None
    ]


def _foreign(hour: HourCells, topic: int) -> int:
    live = next(stage for stage in hour.stages if stage.stage == LIVE)
    rows = live.rows[hour.slices[topic]]
    return int(rows["records"].sum() - rows["marked_records"].sum())
