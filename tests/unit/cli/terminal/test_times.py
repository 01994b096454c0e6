"""Times on the command line."""

import time

import pytest

from pipeline.cli.terminal.times import read_time_ms
from pipeline.errors import ConfigurationError

NOON_MS = 1_793_534_400_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-01T12:00", NOON_MS),
        ("2026-11-01 12:00:00", NOON_MS),
        ("2026-11-01T12:00Z", NOON_MS),
        ("2026-11-01T13:00+01:00", NOON_MS),
        ("2026-11-01T12:00:00.0001", NOON_MS + 1),
        ("2026-11-01", NOON_MS - 12 * 3_600_000),
        (str(NOON_MS), NOON_MS),
        ("0", 0),
        ("1970-01-01", 0),
        ("9999-12-31T23:59:59-23:00", 253_402_383_599_000),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_a_time_without_offset_is_utc(monkeypatch: pytest.MonkeyPatch, zone: str, text: str, time_ms: int) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert read_time_ms("--from", text) == time_ms
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("noon", "'noon' is not a time: give 2026-11-01T00:00"),
        ("", "is not a time"),
        ("-1", "is not a time"),
        ("9" * 19, "is not a time"),
        ("٢٠٢٦", "is not a time"),
        ("1969-12-31T23:59:59.999", "is before 1970"),
        ("0001-01-01T00:00+05:00", "is before 1970"),
        ("20261101", "looks like a day"),
        ("1793534400", "looks like seconds"),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--from: .*{reason}"):
        read_time_ms("--from", text)
