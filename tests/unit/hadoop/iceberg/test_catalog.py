"""Catalogs that do not answer."""

import socket
from collections.abc import Iterator

import pytest

from pipeline.errors import ConfigurationError
from pipeline.hadoop.iceberg.catalog import CatalogUnreachableError, open_catalog
from pipeline.processes import free_port


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_rest_catalog_is_given_up(silent: str) -> None:
    with pytest.raises(CatalogUnreachableError, match="timed out"):
        open_catalog("file:///lake", {"uri": f"http://{silent}"}, 0.2)


def test_a_catalog_that_is_down_is_no_wrong_setting() -> None:
    with pytest.raises(CatalogUnreachableError, match="refused"):
        open_catalog("file:///lake", {"uri": f"http://127.0.0.1:{free_port()}"}, 30)
    for wrong in ({"type": "none"}, {"type": "rest"}, {"uri": "ftp://host"}):
        with pytest.raises(ConfigurationError, match=r"iceberg\.catalog"):
            open_catalog("file:///lake", wrong)
