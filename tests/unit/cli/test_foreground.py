import socket
from typing import Any

import pytest
import typer

from pipeline.cli.foreground import http_url, read_json


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1:8084", "http://127.0.0.1:8084"),
        ("http://a:1/", "http://a:1"),
        ("https://a/b", "https://a/b"),
        ("[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses_of_services(given: Any, url: Any) -> None:
    assert http_url(given) == url


@pytest.mark.parametrize("given", ["", "http://", "ftp://a:1", "a b:1", "a:port", "[::1:80", "a:99999"])
def test_invalid_addresses_are_refused(given: Any) -> None:
    with pytest.raises(typer.BadParameter, match="http://host:port"):
        http_url(given)


def test_an_invalid_address_is_told_without_its_password() -> None:
    with pytest.raises(typer.BadParameter, match="'host:x' is not of the form") as refused:
        http_url("http://user:secret@host:x")
    assert "secret" not in str(refused.value)


def test_a_service_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/report"
    with pytest.raises(typer.Exit):
        read_json(url)
    assert capsys.readouterr().err == f"pipeline: {url} cannot be reached: Connection refused\n"
