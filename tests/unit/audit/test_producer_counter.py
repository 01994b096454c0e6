"""Counting at a producer: acknowledged batches only, each once, also if events are lost, repeated or overtaken."""

from dataclasses import replace

from pipeline.audit.ledger import Ledger
from pipeline.audit.message import Tier
from pipeline.audit.producer_counter import ProducerCounter
from pipeline.records.tally import Counts
from tests.support.counted_logs import CLICKS, INTERNAL, WINDOW_MS, header


def test_acknowledged_batches_are_reported_once() -> None:
    producer, ledger = ProducerCounter("east", "one", WINDOW_MS, clock=lambda: 5), Ledger()
    other = ProducerCounter("east", "two", WINDOW_MS, clock=lambda: 5)
    producer.delivered(CLICKS, header(0, 3, crc=7))
    producer.delivered(INTERNAL, header(0, 3))
    first = producer.take_events()
    producer.delivered(CLICKS, header(3, 2, crc=8))
    second = producer.take_events()
    other.delivered(CLICKS, header(5, 1, crc=9))
    for event in [*second, *first, *other.take_events(), *second]:
        ledger.apply(event)
    found = ledger.counts("east", Tier.PRODUCER, CLICKS, WINDOW_MS)
    assert found is not None
    assert {start: report.counts for start, report in found.windows.items()} == {0: Counts(6, 300, 3, 24)}
    producer.put_back([replace(second[0])])
    assert producer.take_events()[0].windows == second[0].windows
