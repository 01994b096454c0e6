"""Metrics that every HTTP server of a service has beside those of the service."""

import time

import trio
from prometheus_client import CollectorRegistry

from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from tests.support.secured_http import HttpFiles
from tests.unit.net.http.test_service import FREE

YEAR_S = 366 * 24 * 3600


async def test_metrics_say_whether_the_service_is_ready_and_when_its_certificate_expires(files: HttpFiles) -> None:
    missing: list[str] = ["the hub"]
    metrics = CollectorRegistry()
    served = operations_routes(metrics, lambda: None, lambda: missing[0] if missing else None)
    service = HttpService(name="things", routes=served, roles={}, metrics=metrics)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_service, service, FREE, HttpSecurity.from_settings(files.settings))
        assert metrics.get_sample_value("pipeline_ready") == 0
        assert abs((metrics.get_sample_value("pipeline_time_seconds") or 0) - time.time()) < 60
        missing.clear()
        assert metrics.get_sample_value("pipeline_ready") == 1
        end_s = metrics.get_sample_value("pipeline_http_certificate_expiration_timestamp_seconds")
        assert end_s is not None
        assert 0 < end_s - time.time() < YEAR_S
        nursery.cancel_scope.cancel()
    assert metrics.get_sample_value("pipeline_ready") is None  # so that the next server can say it
