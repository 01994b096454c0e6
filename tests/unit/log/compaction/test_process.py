"""The cleaner's process: jobs and reports over a socket, and a bound on what it moves."""

import socket
import threading
from pathlib import Path

import pytest

from pipeline.log.compaction.jobs import (
    Cleaned,
    CleaningJob,
    CleaningProgress,
    Failed,
    GroupCleaned,
    Report,
    decode_report,
    encode_report,
)
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.compaction.process import Throttle, serve
from pipeline.log.segment_names import LOG_SUFFIX, segment_path
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES

REPORTS = [
    CleaningProgress(moved_bytes=1),
    GroupCleaned(base_offset=0, end_offset=7),
    Cleaned(end_offset=7, read_bytes=1, written_bytes=2, keys=3, map_fill=0.5),
    Failed(reason="the disk", is_full=True),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_arrive_as_they_were(report: Report) -> None:
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"kind": "Other"}', b'{"kind": "CleaningProgress", "x": 1}', b"\xff"]
)
def test_invalid_reports_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="no report"):
        decode_report(line)


def test_bytes_moved_stay_below_the_rate_and_progress_is_reported() -> None:
    now_s = 100.0
    told: list[int] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    throttle = Throttle(1000, told.append, clock=lambda: now_s, sleep=sleep)
    for _ in range(10):
        throttle.moved(500)
    assert now_s == pytest.approx(105.0)
    assert told[:2] == [1000, 2000] and len(told) == 5
    throttle.moved(3000)
    assert now_s == pytest.approx(108.0) and len(told) == 8


def test_jobs_are_done_one_after_the_other_until_the_channel_is_closed(tmp_path: Path) -> None:
    builder = BatchBuilder(Codec.NONE, 1000)
    for value in (b"1", b"2"):
        builder.append(b"k", value, (), 0)
    content = builder.build()
    segment_path(tmp_path, 0, LOG_SUFFIX).write_bytes(content)
    job = CleaningJob(
        directory=str(tmp_path),
        segments=(SegmentRange(0, 2, len(content)),),
        first_dirty_offset=0,
        now_ms=0,
        delete_retention_ms=0,
        segment_bytes=1000,
        index_interval_bytes=0,
        max_opened_bytes=MIN_OPENED_BYTES,
        map_bytes=1 << 20,
        map_load_factor=0.9,
        bytes_per_second=1e12,
        kept_offsets=(5,),
        hash_key=(2**64 - 1, 0),
    )
    assert CleaningJob.decode(job.encode()) == job
    damaged = CleaningJob.decode(job.encode().replace(b'"segments": [[0', b'"segments": [[1'))
    segment_path(tmp_path, 1, LOG_SUFFIX).write_bytes(bytes(len(content)))
    own, other = socket.socketpair()
    with own, other:
        thread = threading.Thread(target=serve, args=(other,))
        thread.start()
        own.sendall(job.encode() + damaged.encode())
        own.shutdown(socket.SHUT_WR)
        thread.join(60)
        assert not thread.is_alive()
        other.close()
        with own.makefile("rb") as lines:
            reports = [report for report in map(decode_report, lines) if not isinstance(report, CleaningProgress)]
    assert reports[0] == GroupCleaned(base_offset=0, end_offset=2)
    assert isinstance(reports[1], Cleaned) and reports[1].keys == 1
    assert isinstance(reports[2], Failed) and not reports[2].is_full
