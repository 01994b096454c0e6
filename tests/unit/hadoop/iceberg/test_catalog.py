"""Catalogs that do not answer."""

import socket
from collections.abc import Iterator

import pytest

from pipeline.errors import ConfigurationError
from pipeline.hadoop.iceberg.catalog import open_catalog


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_rest_catalog_is_given_up(silent: str) -> None:
    with pytest.raises(ConfigurationError, match="timed out"):
        open_catalog("file:///lake", {"uri": f"http://{silent}"}, 0.2)
