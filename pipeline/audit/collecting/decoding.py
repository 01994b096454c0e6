"""Decoding of the records of an audit topic, many at a time, for a thread of its own. Pure.

Owns the bounds of one portion: its bytes, so that other clusters and questions get their turn, and its rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.audit.collecting.clocks import StoredAt, believed_older_event, believed_report
from pipeline.audit.events.encoding import AuditMessageError, decode_count_report
from pipeline.audit.events.older import OlderEvent, decode_older_event
from pipeline.audit.events.report import CountReport
from pipeline.errors import CorruptBatchError
from pipeline.records.batch import BatchHeader
from pipeline.records.record import records_of_payload

MAX_ROWS: Final = 500_000
"""Rows of a portion, more than 64 MiB of reports have. Events beyond them are skipped: they are no counter's."""


@dataclass(slots=True)
class DecodedEvents:
    """Events of a portion of an audit topic, in order. `unreadable` records were skipped; `error` is the first reason.

    `damaged` are the offsets (first, after the last) of batches whose records cannot be read.
    """

    events: list[CountReport | OlderEvent] = field(default_factory=list)
    unreadable: int = 0
    error: str | None = None
    damaged: list[tuple[int, int]] = field(default_factory=list)
    losses: list[tuple[str, int]] = field(default_factory=list)
    """Clusters whose audit topic lost reports, and the greatest timestamp of the batch that says so."""
    sights: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Of each life sign: cluster, counter and process, reports it could not read back, its time, and that timestamp."""
    rows: int = 0
    """Number of rows of all reports."""

    def skip(self, reason: str) -> None:
        """Count a record that is no event."""
        self.unreadable += 1
        self.error = self.error or reason


def decode_portion(batches: Iterable[tuple[BatchHeader, bytes, StoredAt]], position: int) -> DecodedEvents:
    """Return the events of opened batches, from an offset on, with the times that can be believed.

    Nothing that a batch holds raises an error.
    """
    decoded = DecodedEvents()
    for header, payload, stored_at in batches:
        try:
            values = [record.value for record in records_of_payload(payload, header) if record.offset >= position]
        except CorruptBatchError as error:
            decoded.damaged.append((header.base_offset, header.next_offset))
            decoded.error = decoded.error or str(error)
            continue
        known = len(decoded.events)
        _decode_values(values, stored_at, decoded)
        reports = [event for event in decoded.events[known:] if isinstance(event, CountReport)]
        decoded.losses += [(each.counter.cluster, header.max_timestamp) for each in reports if each.is_after_loss]
        decoded.sights += [
            (each.counter.cluster, _process(each), each.unseen, each.created_ms, header.max_timestamp)
            for each in reports
            if each.life is not None
        ]
    return decoded


def _decode_values(values: Sequence[bytes | None], stored_at: StoredAt, decoded: DecodedEvents) -> None:
    for value in values:
        if value is None:  # a tombstone
            continue
        try:
            event = decode_any_version(value)
        except AuditMessageError as error:
            decoded.skip(str(error))
            continue
        if isinstance(event, CountReport):
            if decoded.rows + len(event.rows) > MAX_ROWS:
                decoded.skip(f"more than {MAX_ROWS} rows at a time")
                continue
            decoded.rows += len(event.rows)
            decoded.events.append(believed_report(event, stored_at))
        else:
            decoded.events.append(believed_older_event(event, stored_at))


def _process(report: CountReport) -> str:
    counter = report.counter
    return " ".join(part for part in (counter.tier, counter.name, report.process) if part)


def decode_any_version(value: bytes) -> CountReport | OlderEvent:
    """Return the event in a record's value, of version 3 or 2. Raises AuditMessageError."""
    try:
        return decode_count_report(value)
    except AuditMessageError as error:
        try:
            return decode_older_event(value)
        except AuditMessageError:
            raise error from None
