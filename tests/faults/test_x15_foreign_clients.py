"""Item x15: producers that know nothing of the audit are counted at the brokers, from the first broker on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Producer

from pipeline.cli.demo.datacenters import LIVE, Datacenters
from tests.support.copies import read_report

HOUR_MS = 1_700_002_800_000
HOUR = "2023-11-14T23:00:00Z"
RECORDS = 500
DEADLINE_S = 120
TOPIC = "orders"


def produce_with_librdkafka(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    failures: list[Any] = []
    for number in range(RECORDS):
        producer.produce(
            TOPIC,
            b"%d" % number,
            timestamp=HOUR_MS + number,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert not failures


def is_told(report: Mapping[str, Any] | None) -> bool:
    if report is None:
        return False
    return [hour["status"] for hour in report["hours"] if hour["hour"] == HOUR] == ["exact"]


@pytest.mark.long
async def test_records_of_foreign_producers_are_counted_and_compared(tmp_path: Path) -> None:
    async with Datacenters(tmp_path, [TOPIC]) as datacenters:
        for name in LIVE:
            await trio.to_thread.run_sync(produce_with_librdkafka, datacenters.bootstrap[name])
        report: dict[str, Any] | None = None
        with trio.move_on_after(DEADLINE_S):
            while not is_told(report):
                await trio.sleep(0.2)
                report = await read_report(datacenters, TOPIC)
        assert is_told(report), report
        assert report is not None
        (hour,) = (one for one in report["hours"] if one["hour"] == HOUR)
        assert set(hour["stages"]) >= {"live", "replica"}
        assert "produced" not in hour["stages"]
        for stage in ("live", "replica"):
            assert hour["stages"][stage]["records"] == RECORDS * len(LIVE)
        assert not hour["findings"]
