"""Findings of one hour: cells whose stages differ, with what explains them. Pure."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pipeline.audit.events.report import Rows
from pipeline.audit.judgement.comparison import STATUSES, Remark, code_of
from pipeline.audit.judgement.edges import Edge
from pipeline.audit.judgement.explaining import explained
from pipeline.audit.judgement.hour_cells import HourCells
from pipeline.audit.judgement.missing_words import producer_witness, silent_counter_witness
from pipeline.audit.judgement.sentences import number_text, records_text, sentence
from pipeline.audit.judgement.silent_producers import may_have_written
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Finding, OffsetSpan, Status, Witness
from pipeline.audit.judgement.ways import is_among
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.position_table import NEVER_MS

MAX_WAITING: Final = 20
"""Partitions of a topic and stage with a finding of their own for records under way or a silent counter; the next one
stands for all others. When a cluster is away, hours have such findings for each partition."""

_KINDS = {
    Status.MISSING: DiscrepancyKind.MISSING,
    Status.EXTRA: DiscrepancyKind.UNEXPLAINED,
    Status.CHANGED: DiscrepancyKind.CHANGED,
}
_OTHER_WAYS = {
    Remark.COPIED: (
        "copies in",
        "they are counted as well as what producers sent: compare with `pipeline mirror verify`",
    ),
    Remark.PROMOTED: ("producers of", "it was promoted, and producers that do not count may have written to it"),
}


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A cell whose stages differ."""

    finding: Finding
    place: int
    remark: Remark
    lacks: tuple[int, int]
    """Records and content that the later stage has too few; negative records: too many."""


def findings_of(hour: HourCells, over: Collection[int]) -> dict[int, list[Finding]]:
    """Return the findings of an hour by topic. Records under way count of topics whose hour is over."""
    found: dict[int, list[Finding]] = defaultdict(list)
    is_over = is_among(hour.topics, frozenset(over))
    for edge in hour.edges:
        codes = edge.compared.codes
        suspect = (codes != code_of(Status.EXACT)) & (is_over | (codes != code_of(Status.PENDING)))
        places = np.flatnonzero(suspect)
        if not len(places):
            continue
        places, others = _bounded(hour, edge, places)
        suspects = [_suspect(hour, edge, place) for place in places.tolist()]
        suspects = explained(hour, edge, suspects, _explain)
        for each in _misplaced(suspects):
            topic = int(hour.topics[each.place])
            finding = each.finding
            if finding.status is Status.PENDING and hour.late(topic) is not None:
                finding = replace(finding, kind=DiscrepancyKind.LATE)
            text = sentence(finding, each.remark)
            if each.place in others:
                number, records = others[each.place]
                text += f"; the same is true of {number_text(number, 'more partition')}, with {records_text(records)}"
                finding = replace(finding, records=finding.records + records)
            found[topic].append(replace(finding, text=text))
    return found


def _bounded(hour: HourCells, edge: Edge, places: Int64s) -> tuple[Int64s, dict[int, tuple[int, int]]]:
    """Return the places that have findings, and the number and records of the others that a place stands for."""
    compared = edge.compared
    waits = (compared.codes[places] == code_of(Status.PENDING)) | (compared.remarks[places] == Remark.SILENT)
    if edge.at.stage.tier == "consumed" or np.count_nonzero(waits) <= MAX_WAITING:
        return places, {}
    waiting = np.flatnonzero(waits)
    topics = hour.topics[places[waiting]]
    starts = np.flatnonzero(np.concatenate([[True], topics[1:] != topics[:-1]]))
    sizes = np.diff(np.append(starts, len(topics)))
    ranks = np.arange(len(topics)) - np.repeat(starts, sizes)
    others = {}
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if size > MAX_WAITING + 1:
            left = places[waiting[start + MAX_WAITING + 1 : start + size]]
            others[int(places[waiting[start + MAX_WAITING]])] = len(left), int(compared.records[left].sum())
    return np.delete(places, waiting[ranks > MAX_WAITING]), others


def _suspect(hour: HourCells, edge: Edge, place: int) -> _Suspect:
    status = STATUSES[edge.compared.codes[place]]
    remark = Remark(int(edge.compared.remarks[place]))
    kind = DiscrepancyKind.REORDERED if remark is Remark.REORDERED else _KINDS.get(status)
    if status is Status.EXTRA and edge.at.stage.tier == "stored":  # files that were read back have offsets twice
        kind = DiscrepancyKind.DOUBLED
    cell, replica = int(hour.cells[place]), int(hour.replicas[place])
    before, at = edge.before.rows[place], edge.at.rows[place]
    both = bool(before["has_sums"] and at["has_sums"])
    records = int(before["records"]) - int(at["records"])
    content = (int(before["content_sum"]) - int(at["content_sum"])) % 2**64 if both else -1
    finding = Finding(
        cluster=hour.words.way.cluster,
        source=hour.words.partition(cell),
        replica=hour.words.partition(replica) if replica >= 0 else None,
        hour_ms=hour.hour_ms,
        after=hour.shown(edge.before.stage, int(hour.topics[place])),
        at=hour.shown(edge.at.stage, int(hour.topics[place])),
        status=status,
        records=int(edge.compared.records[place]),
        kind=kind,
        offsets=_offsets(before, at),
        witness=_witness(hour, edge, place, status, remark),
        quarantined=int(at["quarantined"]),
    )
    return _Suspect(finding, place, remark, (records, content))


def _offsets(before: Rows, at: Rows) -> OffsetSpan | None:
    """Return the offsets of the hour at either stage; None if neither knows them."""
    known = [(int(row["first_offset"]), int(row["last_offset"])) for row in (before, at) if row["last_offset"] >= 0]
    known = [(first, last) for first, last in known if first >= 0]
    if not known:
        return None
    return OffsetSpan(first=min(first for first, _ in known), last=max(last for _, last in known))


def _witness(hour: HourCells, edge: Edge, place: int, status: Status, remark: Remark) -> Witness | None:
    """Return the witness of an unknown difference: a producer that fell silent."""
    if status is not Status.UNKNOWN:
        return None
    if remark is Remark.FOREIGN_OR_DOUBLED:
        return Witness(
            name="producers without marks",
            reason="producers that do not count, or records doubled: make all producers of the topic count",
            cluster=hour.words.way.cluster,
            partition=hour.words.partition(int(hour.cells[place])),
        )
    if remark is Remark.FOLDED:
        return Witness(
            name=f"counters of {hour.words.partition(int(hour.cells[place]))}",
            reason="a counter keeps the hour no longer apart, and older hours differ: see the hour of all older ones",
            cluster=hour.words.way.cluster,
            partition=hour.words.partition(int(hour.cells[place])),
        )
    if remark in _OTHER_WAYS:
        partition = hour.words.partition(int(edge.at.cells[place]))
        name, reason = _OTHER_WAYS[remark]
        return Witness(
            name=f"{name} {partition.topic} in {edge.at.cluster}",
            reason=reason,
            cluster=edge.at.cluster,
        )
    if remark is Remark.CLOCK:
        clocks = hour.words.clocks
        return clocks.get(edge.at.cluster) or clocks.get(edge.before.cluster)
    if remark is Remark.SILENT:
        return _silent_counter(hour, edge, place)
    if edge.before.stage.tier != "produced" or remark is Remark.DOUBTFUL:
        return None
    end_ms = np.array([hour.end_of(int(hour.topics[place]))])
    counted_ms = edge.at.rows["created_ms"][place : place + 1]
    lives = [
        life
        for life in hour.words.silent_lives(int(hour.topics[place]))
        if may_have_written(life, hour.hour_ms, end_ms, counted_ms, grace_ms=hour.words.timing.grace_ms)[0]
    ]
    return producer_witness(lives[0], hour.words.way.cluster, silent=True) if lives else None


def _silent_counter(hour: HourCells, edge: Edge, place: int) -> Witness:
    """Return the witness for the stage whose word is missing."""
    now_ms = hour.words.timing.now_ms
    stage = edge.at if edge.at.is_silent(now_ms)[place] else edge.before
    word_ms, cell = int(stage.word_ms[place]), int(stage.cells[place])
    partition = hour.words.partition(cell) if cell >= 0 else None
    if hour.words.timing.is_unread(stage.cluster):
        return Witness(
            name=f"audit topic of {stage.cluster}",
            reason="it was not read up to now",
            cluster=stage.cluster,
            partition=partition,
        )
    if partition is None:  # a replica that is not there yet
        reason = f"no life sign of theirs came since {iso_time(word_ms)}"
        return Witness(name=f"brokers of {stage.cluster}", reason=reason, cluster=stage.cluster)
    clock = hour.words.clocks.get(stage.cluster)
    return silent_counter_witness(stage.cluster, partition, word_ms, clock, never=word_ms < NEVER_MS // 2)


def _explain(suspect: _Suspect, finding: Finding) -> _Suspect:
    return replace(suspect, finding=finding)


def _misplaced(suspects: Sequence[_Suspect]) -> list[_Suspect]:
    """Return the suspects, with those named misplaced that lack exactly what another partition of the topic has.

    Batches may have been swapped, so as many records may be there.
    """
    waiting: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    result = list(suspects)
    for number, each in enumerate(suspects):
        records, content = each.lacks
        moved = each.finding.status in (Status.MISSING, Status.EXTRA) or each.finding.kind is DiscrepancyKind.CHANGED
        if not moved or content <= 0:
            continue
        topic = each.finding.source.topic
        others = waiting[topic, -records, (-content) % 2**64]
        if others:
            other = others.pop()
            result[number], result[other] = _named_misplaced(each), _named_misplaced(suspects[other])
        else:
            waiting[topic, records, content].append(number)
    return result


def _named_misplaced(suspect: _Suspect) -> _Suspect:
    return replace(suspect, finding=replace(suspect.finding, kind=DiscrepancyKind.MISPLACED))
