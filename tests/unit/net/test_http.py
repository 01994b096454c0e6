import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http import http_application, operations_routes, serve_http
from pipeline.net.nurseries import unwrapped_errors


async def test_an_address_in_use_is_a_fault_of_the_settings_in_one_line():
    application = http_application(operations_routes(CollectorRegistry(), lambda: None))
    with (
        pytest.raises(ConfigurationError, match=r"http\.listen: cannot listen on 127\.0\.0\.1") as caught,
        unwrapped_errors(),
    ):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_http, application, HostPort("127.0.0.1", 0))
            await serve_http(application, address)
    assert caught.value.key == "http.listen"
