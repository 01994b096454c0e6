"""Metrics of requests and connections, named as by Kafka's JMX exporter.

Times are in milliseconds, as in Kafka, each stage with its sum and count; the total time is a histogram, also in
seconds. Every error code in an answer but NONE counts: a Produce request for ten partitions may count ten.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from pipeline.net.request_statistics import TOTAL_BOUNDS_MS, RequestStatistics
from pipeline.net.server import ServerStatistics
from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode

_REQUESTS = "kafka_network_requestmetrics"
_CONNECTIONS = "kafka_server_socket_server_metrics"
_STAGES = (
    ("requestqueuetimems", "request_queue_s", "Milliseconds from the arrival of a request to its handler."),
    ("localtimems", "local_s", "Milliseconds of the handler's own work."),
    ("remotetimems", "remote_s", "Milliseconds that the handler waits: for records, a disk, other members of a group."),
    ("throttletimems", "throttle_s", "Milliseconds for which a client is not heard because it is over its quota."),
    ("responsequeuetimems", "response_queue_s", "Milliseconds from the answer until it is being sent."),
    ("responsesendtimems", "response_send_s", "Milliseconds until the answer is with the operating system."),
)


def request_name(api_key: ApiKey) -> str:
    """Return the name of an api key as Kafka writes it: `ListOffsets`."""
    return api_key.request.__name__.removesuffix("Request")


def collect_requests(statistics: ServerStatistics) -> Iterator[Metric]:
    """Count, bytes, times and errors of each api key that was requested."""
    asked = [(request_name(key), counts) for key, counts in statistics.requests.items() if counts.request_bytes]
    requests = CounterMetricFamily(f"{_REQUESTS}_requests", "Requests that were answered, by api.", labels=("request",))
    errors = CounterMetricFamily(
        f"{_REQUESTS}_errors",
        "Error codes in answers, by api: an answer for many partitions may count many.",
        labels=("request", "error"),
    )
    request_bytes = SummaryMetricFamily(
        f"{_REQUESTS}_requestbytes", "Bytes of requests, with their headers.", labels=("request",)
    )
    response_bytes = SummaryMetricFamily(
        f"{_REQUESTS}_responsebytes", "Bytes of responses, with their headers.", labels=("request",)
    )
    for name, counts in asked:
        requests.add_metric((name,), counts.requests)
        request_bytes.add_metric((name,), counts.requests, counts.request_bytes)
        response_bytes.add_metric((name,), counts.requests, counts.response_bytes)
        for error, count in _errors(counts):
            errors.add_metric((name, error), count)
    yield from (requests, errors, request_bytes, response_bytes)
    for name, attribute, text in _STAGES:
        stage = SummaryMetricFamily(f"{_REQUESTS}_{name}", text, labels=("request",))
        for request, counts in asked:
            stage.add_metric((request,), counts.requests, getattr(counts, attribute) * 1000)
        yield stage
    yield from _total_times(asked)


def _total_times(asked: Sequence[tuple[str, RequestStatistics]]) -> Iterator[Metric]:
    """Return the times from arrival until sent: under Kafka's name, and in seconds."""
    total = HistogramMetricFamily(
        f"{_REQUESTS}_totaltimems",
        "Milliseconds from the arrival of a request until its answer was sent.",
        labels=("request",),
    )
    text = "Seconds from the arrival of a request until its answer was sent."
    seconds = HistogramMetricFamily("pipeline_request_seconds", text, labels=("request",))
    in_ms = (*map(str, TOTAL_BOUNDS_MS), "+Inf")
    in_s = (*(str(bound / 1000) for bound in TOTAL_BOUNDS_MS), "+Inf")
    for request, counts in asked:
        found = list(accumulate(counts.total_buckets))
        total.add_metric((request,), list(zip(in_ms, found, strict=True)), counts.total_s * 1000)
        seconds.add_metric((request,), list(zip(in_s, found, strict=True)), counts.total_s)
    yield from (total, seconds)


def _errors(counts: RequestStatistics) -> Iterator[tuple[str, int]]:
    """Yield error codes with their counts. A request that ended its connection counts as UNKNOWN_SERVER_ERROR."""
    codes = dict(counts.errors)
    if counts.failed:
        codes[ErrorCode.UNKNOWN_SERVER_ERROR] = codes.get(ErrorCode.UNKNOWN_SERVER_ERROR, 0) + counts.failed
    for code, count in sorted(codes.items()):
        yield ErrorCode.of(code).name, count


def collect_connections(statistics: ServerStatistics) -> Iterator[Metric]:
    """Connections that are open, were refused or broken, and the memory of large requests under way."""
    for name, value, text in (
        (
            f"{_CONNECTIONS}_connection_count",
            statistics.open_connections,
            "Connections of clients and brokers that are open now.",
        ),
        (
            f"{_CONNECTIONS}_memory_pool_used",
            statistics.memories.held,
            "Bytes of memory that large requests under way hold.",
        ),
        (f"{_CONNECTIONS}_memory_pool_waiting", statistics.memories.waiting, "Large requests that wait for memory."),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    for name, value, text in (
        ("connection_creation", statistics.accepted, "Connections of clients and brokers that were accepted."),
        ("connection_refused", statistics.refused, "Connections over max.connections or max.connections.per.ip."),
        ("connection_broken", statistics.broken, "Connections closed because of what they sent."),
    ):
        yield CounterMetricFamily(f"{_CONNECTIONS}_{name}", text, value=value)
